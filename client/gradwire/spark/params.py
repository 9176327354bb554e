"""Parameters of `TorchEstimator` and `TorchModel`, as pyspark.ml has them."""

from collections.abc import Callable
from typing import Any, Final

from pyspark.ml.param import Param, Params, TypeConverters

from gradwire.errors import UsageError
from gradwire.settings.settings import Settings
from gradwire_protocol.messages.modes.mode import Mode, parse_mode
from gradwire_protocol.settings import declared_settings
from gradwire_udp.files.configuration import unknown_names


def _names(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else TypeConverters.toListString(value)


def _optional(converter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else converter(value)


def _one_of(*choices: str) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if value not in choices:
            raise TypeError(f"{value!r}; there are {', '.join(choices)}")
        return str(value)

    return convert


def _at_least(least: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        number: int = TypeConverters.toInt(value)
        if number < least:
            raise ValueError(f"{value}; it has to be at least {least}")
        return number

    return convert


def _mode(value: Any) -> str | None:
    """Return the text of a mode: it can be saved."""
    if value is None:
        return None
    mode = value if isinstance(value, Mode) else parse_mode(value)
    if mode.optimizer is not None:
        raise UsageError(
            f"mode {mode}: the estimator's tasks have an optimizer of their own; choose sharing, "
            "averaging, diloco or synchronous"
        )
    return str(mode)


ELSEWHERE: Final = {
    "aggregationDepth": "one master adds up what workers contribute",
    "averagingFrequency": "mode=gradwire.Averaging(every=5)",
    "batchSizePerWorker": "batchSize=",
    "collectTrainingStats": "it is always collected, in model.summary",
    "controllerAddress": "spark.driver.host says it, or master= and keyFile= a running master",
    "encodingDebugMode": "the losses and times in model.summary",
    "meshBuildMode": "the master relays to all workers, which is what PLAIN was; there is no mesh",
    "networkMask": "networkMask= of the estimator",
    "rddTrainingApproach": "approach='export' or 'direct'",
    "repartitionData": "repartition=True or False",
    "residualPostProcessor": "nothing of a change is cut off, so nothing takes its place",
    "rngSeed": "seed=",
    "saveUpdater": "mode=gradwire.Averaging(every=5, optimizer_state=True)",
    "storageLevel": "'direct' keeps a partition in an unlinked file",
    "thresholdAlgorithm": "density_band=, target_density= or threshold=",
    "unicastPort": "port=",
    "updatesThreshold": "threshold=",
    "workerPrefetchNumBatches": "a worker reads one item at a time; trainBatch= and fit_paths' "
    "loader may read ahead",
}
"""What settings of Deeplearning4j are here."""


def _join(value: Any) -> dict[str, Any] | None:
    """Return settings of `gradwire.join`, once all names are known."""
    if value is None:
        return None
    settings, known = dict(value), declared_settings(Settings)
    for name in settings:
        if name in ELSEWHERE:
            raise UsageError(
                f"join: no setting {name!r}, as Deeplearning4j has it: {ELSEWHERE[name]}"
            )
    if unknown := settings.keys() - known.keys():
        raise UsageError(f"join: unknown settings: {unknown_names(unknown, known)}")
    return settings


def _param(name: str, text: str, converter: Callable[[Any], Any] | None = None) -> Param[Any]:
    return Param(Params._dummy(), name, text, converter)


class TorchParams(Params):
    """Parameters that estimator and model share."""

    model: Param[Any] = _param(
        "model",
        "a function that returns the torch.nn.Module, its import path 'package.module:function', "
        "or the module itself",
    )
    loss: Param[Any] = _param(
        "loss", "from outputs and targets to the mean loss, such as torch.nn.CrossEntropyLoss()"
    )
    featuresCol: Param[Any] = _param(
        "featuresCol",
        "column of features, or several: each is an argument of the model",
        _names,
    )
    labelCol: Param[Any] = _param(
        "labelCol",
        "column of labels, or several; None compares outputs with the features",
        _optional(_names),
    )
    weightCol: Param[Any] = _param(
        "weightCol", "column of weights of rows", _optional(TypeConverters.toString)
    )
    predictionCol: Param[Any] = _param(
        "predictionCol", "column that transform adds: the class, or the value",
        TypeConverters.toString,
    )  # fmt: skip
    rawPredictionCol: Param[Any] = _param(
        "rawPredictionCol", "column that transform adds: all outputs, a vector",
        TypeConverters.toString,
    )  # fmt: skip
    probabilityCol: Param[Any] = _param(
        "probabilityCol", "column that transform adds for classes: their probabilities, a vector",
        TypeConverters.toString,
    )  # fmt: skip
    batchSize: Param[Any] = _param("batchSize", "rows of a batch of one worker", _at_least(1))
    decode: Param[Any] = _param(
        "decode",
        "for binary columns: from the bytes of a row to an array of always the same shape",
    )
    seed: Param[Any] = _param("seed", "of first parameters and of the order of rows", _at_least(0))

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            labelCol=["label"],
            featuresCol=["features"],
            weightCol=None,
            predictionCol="prediction",
            rawPredictionCol="rawPrediction",
            probabilityCol="probability",
            batchSize=32,
            decode=None,
            seed=0,
        )

    def _set_given(self, values: dict[str, Any]) -> None:
        """Set parameters that were passed; a wrong value is an error that names it."""
        for name, value in values.items():
            if value is NOT_GIVEN:
                continue
            if name in ELSEWHERE and not self.hasParam(name):
                raise UsageError(
                    f"no parameter {name!r}, as Deeplearning4j has it: {ELSEWHERE[name]}"
                )
            if not self.hasParam(name):
                known = ", ".join(sorted(param.name for param in self.params))
                raise UsageError(f"no parameter {name!r}; there are {known}")
            try:
                self._set_value(name, value)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{name}={value!r}: {error}") from error

    def _set_value(self, name: str, value: Any) -> None:
        param = self.getParam(name)
        self._paramMap[param] = param.typeConverter(value)

    def _value(self, name: str) -> Any:
        return self.getOrDefault(name) if self.isDefined(name) else None


NOT_GIVEN: Final[Any] = object()
"""In place of a parameter that was not passed: None is a value of some."""


class TrainingParams(TorchParams):
    """Parameters of training alone."""

    optimizer: Param[Any] = _param(
        "optimizer", "from parameters to an optimizer, such as partial(torch.optim.Adam, lr=1e-3)"
    )
    trainBatch: Param[Any] = _param(
        "trainBatch", "from the module and a Batch to the loss, in place of loss(model(inputs))"
    )
    epochs: Param[Any] = _param("epochs", "how often each row is trained on", _at_least(1))
    numWorkers: Param[Any] = _param(
        "numWorkers", "tasks that train; None: as many as the cluster has slots",
        _optional(_at_least(1)),
    )  # fmt: skip
    workersPerNode: Param[Any] = _param(
        "workersPerNode", "tasks that train on one executor; None: as many as it has slots",
        _optional(_at_least(1)),
    )  # fmt: skip
    validationIndicatorCol: Param[Any] = _param(
        "validationIndicatorCol", "column that is true for rows to validate with",
        _optional(TypeConverters.toString),
    )  # fmt: skip
    approach: Param[Any] = _param(
        "approach",
        "'export' writes the data once, as files that all workers read; 'direct' has each task "
        "train on its own partition",
        _one_of("export", "direct"),
    )
    exportDirectory: Param[Any] = _param(
        "exportDirectory", "in a file system that executors and driver share; None: the warehouse",
        _optional(TypeConverters.toString),
    )  # fmt: skip
    reuseExport: Param[Any] = _param(
        "reuseExport", "keep the export, and take one of the same data", TypeConverters.toBoolean
    )
    repartition: Param[Any] = _param(
        "repartition",
        "spread the rows over the partitions first: it mixes sorted data and evens out skewed data",
        TypeConverters.toBoolean,
    )
    earlyStopping: Param[Any] = _param(
        "earlyStopping",
        "limits of gradwire.EarlyStopping, as in {'patience': 3}; scores are the loss on the rows "
        "of validationIndicatorCol after each epoch, and the best model is returned",
    )
    leaseSeconds: Param[Any] = _param(
        "leaseSeconds",
        "an item that a worker has held for so long goes to another one as well",
        _at_least(1),
    )
    checkpoint: Param[Any] = _param(
        "checkpoint", "folder of the driver for checkpoints of the run",
        _optional(TypeConverters.toString),
    )  # fmt: skip
    resourceProfile: Param[Any] = _param(
        "resourceProfile", "a pyspark.resource.ResourceProfile of the tasks, such as with GPUs"
    )
    master: Param[Any] = _param(
        "master", "host:port of a running master; None starts one in the driver",
        _optional(TypeConverters.toString),
    )  # fmt: skip
    keyFile: Param[Any] = _param(
        "keyFile", "file with the run key of that master", _optional(TypeConverters.toString)
    )
    masterHttp: Param[Any] = _param(
        "masterHttp", "URL of that master's HTTP; None for port 40124 of its host",
        _optional(TypeConverters.toString),
    )  # fmt: skip
    masterTokenFile: Param[Any] = _param(
        "masterTokenFile", "file with the token of that master's operators",
        _optional(TypeConverters.toString),
    )  # fmt: skip
    port: Param[Any] = _param(
        "port", "UDP port of the driver's master; 0: a free one", _at_least(0)
    )
    networkMask: Param[Any] = _param(
        "networkMask", "network by which executors reach the driver, as in '10.0.0.0/16'",
        _optional(TypeConverters.toString),
    )  # fmt: skip
    mode: Param[Any] = _param(
        "mode",
        "how workers train together: a mode such as gradwire.Averaging(every=5), or its text",
        _mode,
    )
    join: Param[Any] = _param("join", "more settings of gradwire.join, for all workers", _join)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            trainBatch=None,
            epochs=1,
            numWorkers=None,
            workersPerNode=None,
            validationIndicatorCol=None,
            approach="export",
            exportDirectory=None,
            reuseExport=False,
            repartition=True,
            earlyStopping=None,
            leaseSeconds=600,
            checkpoint=None,
            resourceProfile=None,
            master=None,
            keyFile=None,
            masterHttp=None,
            masterTokenFile=None,
            port=0,
            networkMask=None,
            mode=None,
            join=None,
        )
