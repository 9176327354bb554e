"""`TorchEstimator`: an estimator of pyspark.ml that trains a torch module with gradwire."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

import pyarrow as pa
import torch
from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from gradwire.errors import UsageError
from gradwire.settings.modes import Mode
from gradwire.settings.settings import resolve_settings
from gradwire.spark.data.batches import Batch, Decode, batch_of, joined
from gradwire.spark.data.columns import (
    Column,
    Columns,
    check_indicator,
    columns_of,
    columns_of_table,
    selected,
)
from gradwire.spark.data.export import default_directory, exported, items_of
from gradwire.spark.data.sources import Paths, Shards, Source, Tables, packed, table_of
from gradwire.spark.errors import DataError
from gradwire.spark.params import NOT_GIVEN, TrainingParams
from gradwire.spark.persistence import TorchReader, TorchWriter
from gradwire.spark.prediction.model import TorchModel
from gradwire.spark.recipe import Recipe
from gradwire.spark.training.access import starting
from gradwire.spark.training.cluster import check_determinate, profile_of, registered, slots
from gradwire.spark.training.fit import check, probing, train_on
from gradwire.spark.training.plan import Initial, Phases, Plan, Training
from gradwire.threads import console

logger = logging.getLogger("gradwire.spark")

PARTITIONS_PER_WORKER = 2
"""Partitions of an export for each worker: its tasks are short, and some hosts are slower."""

ROWS_READ = 4_096
"""Rows of a batch of what is held out."""


class TorchEstimator(TrainingParams, Estimator[TorchModel], MLReadable[Any], MLWritable):
    """Trains a torch module on a DataFrame, in ordinary tasks.

    Parameters are those of pyspark.ml: `setParams`, `copy`, `explainParams`, `Pipeline` and
    `CrossValidator` work with them.

    Parameters
    ----------
    model : callable, nn.Module or str
        A function that returns the module, its import path ``"package.module:function"``, or the
        module itself. Only what has an import path can be saved.
    loss : callable or str
        From outputs and targets to the mean loss, such as ``torch.nn.CrossEntropyLoss()``.
    optimizer : callable or str
        From parameters to an optimizer, such as ``partial(torch.optim.Adam, lr=1e-3)``.
    featuresCol, labelCol : str or list of str
        Numbers, arrays, vectors or binary. Each column of features is an argument of the model.
        Without labels (None), outputs are compared with the features.
    weightCol : str, optional
        Weight of each row's loss.
    validationIndicatorCol : str, optional
        Rows where it is true are held out, and validate the model after each epoch. They have to
        fit into the driver's memory.
    batchSize, epochs : int
    numWorkers : int, optional
        Tasks that train; by default as many as the cluster has slots.
    workersPerNode : int, optional
        Tasks on one executor, by default one for each slot. It needs ``spark.executor.cores``.
    approach : "export" or "direct"
        Whether the data is written once, as files that all workers read, or each task trains on its
        own partition.
    exportDirectory : str, optional
        In a file system that executors and driver share; by default Spark's warehouse.
    reuseExport : bool
        Keep the export, and take one of the same data that is there.
    repartition : bool
        Spread the rows over the partitions first. That mixes sorted data, and evens out skewed.
    earlyStopping : dict, optional
        Limits of `gradwire.EarlyStopping`, as in ``{"patience": 3}``. The best model is returned.
    leaseSeconds : int
        An item that a worker has held for so long goes to another one as well: its host may stall.
    checkpoint : str, optional
        Folder of the driver for checkpoints of the run.
    seed : int
        Of first parameters and of the order of rows.
    decode : callable, optional
        For binary columns: from the bytes of a row to an array.
    trainBatch : callable, optional
        From the module and a `Batch` to the loss, in place of ``loss(model(*inputs), targets)``.
    resourceProfile : pyspark.resource.ResourceProfile, optional
        Of the tasks, such as with GPUs.
    master, keyFile : str, optional
        Address and run key of a running master. By default the driver starts one.
    masterHttp, masterTokenFile : str, optional
        Where that master serves HTTP, as ``"http://host:40124"``, and a file with the token of its
        ``--http-operator-token-file``: the driver gives it orders.
    port : int
        UDP port of the driver's master; 0 is a free one.
    networkMask : str, optional
        Network by which executors reach the driver, as in ``"10.0.0.0/16"``.
    mode : Mode or str, optional
        How workers train together, such as ``gradwire.Averaging(every=5)``.
    join : dict, optional
        More settings of `gradwire.join` for all workers.
    """

    def __init__(
        self,
        *,
        model: Callable[[], nn.Module] | nn.Module | str = NOT_GIVEN,
        loss: Callable[..., Any] | str = NOT_GIVEN,
        optimizer: Callable[..., torch.optim.Optimizer] | str = NOT_GIVEN,
        featuresCol: str | Sequence[str] = NOT_GIVEN,
        labelCol: str | Sequence[str] | None = NOT_GIVEN,
        weightCol: str | None = NOT_GIVEN,
        validationIndicatorCol: str | None = NOT_GIVEN,
        predictionCol: str = NOT_GIVEN,
        rawPredictionCol: str = NOT_GIVEN,
        probabilityCol: str = NOT_GIVEN,
        batchSize: int = NOT_GIVEN,
        epochs: int = NOT_GIVEN,
        numWorkers: int | None = NOT_GIVEN,
        workersPerNode: int | None = NOT_GIVEN,
        approach: str = NOT_GIVEN,
        exportDirectory: str | None = NOT_GIVEN,
        reuseExport: bool = NOT_GIVEN,
        repartition: bool = NOT_GIVEN,
        earlyStopping: dict[str, Any] | None = NOT_GIVEN,
        leaseSeconds: int = NOT_GIVEN,
        checkpoint: str | None = NOT_GIVEN,
        seed: int = NOT_GIVEN,
        decode: Decode | None = NOT_GIVEN,
        trainBatch: Callable[[nn.Module, Batch], torch.Tensor] | None = NOT_GIVEN,
        resourceProfile: Any = NOT_GIVEN,
        master: str | None = NOT_GIVEN,
        keyFile: str | None = NOT_GIVEN,
        masterHttp: str | None = NOT_GIVEN,
        masterTokenFile: str | None = NOT_GIVEN,
        port: int = NOT_GIVEN,
        networkMask: str | None = NOT_GIVEN,
        mode: Mode | str | None = NOT_GIVEN,
        join: dict[str, Any] | None = NOT_GIVEN,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in _PARAMETERS}
        super().__init__()
        self._set_given(given)

    def setParams(self, **parameters: Any) -> Self:
        """Set parameters by name; returns the estimator."""
        self._set_given(parameters)
        return self

    def fit(
        self, dataset: DataFrame, params: Any = None, *, initial: TorchModel | None = None
    ) -> Any:
        """Train on a DataFrame.

        Parameters
        ----------
        dataset : DataFrame
        params : dict, or list or tuple of dict, optional
            As for all estimators of pyspark.ml.
        initial : TorchModel, optional
            Go on from this model: from its parameters and buffers and, where `fit` has returned it
            and the optimizer is of the same kind, with what that has kept, such as Adam's moments.

        Returns
        -------
        TorchModel
            A list of them for a list of `params`.
        """
        if initial is None:
            return super().fit(dataset, params)
        if isinstance(params, list | tuple):
            raise UsageError("fit: initial= is where one training begins; pass params one by one")
        return (self.copy(params) if params else self)._fit(dataset, initial)

    def fit_paths(
        self,
        spark: SparkSession,
        paths: Sequence[str],
        loader: Callable[[str], Iterable[Any]] | None = None,
        *,
        validation_paths: Sequence[str] = (),
        initial: TorchModel | None = None,
    ) -> TorchModel:
        """Train on files that are there already, each of them one item for a worker.

        Parameters
        ----------
        spark : SparkSession
        paths : sequence of str
            That executors can read.
        loader : callable, optional
            From a path to batches: `Batch`, or ``(inputs, targets)`` of tensors or arrays. Without
            it, the files are Parquet, or Arrow where they are named ``.arrow``, and have the
            columns `featuresCol`, `labelCol` and `weightCol`; the driver reads the first one.
        validation_paths : sequence of str
            Files that validate the model after each epoch, as `validationIndicatorCol` does. The
            driver reads them.
        initial : TorchModel, optional
            Go on from this model, as in `fit`.

        Raises
        ------
        DataError
            If there are no paths, or what is there cannot be trained on.
        """
        if not paths:
            raise DataError("fit_paths: no paths, so nothing to train on")
        console.set_up("info")
        recipe, phases, decode = self._recipe(), Phases(), self._value("decode")
        plan = self._plan(spark, recipe, initial)
        if plan.limits is not None and not validation_paths:
            raise UsageError("earlyStopping needs rows to validate with: pass validation_paths")
        items = packed(list(paths))
        columns: Columns | None = None
        source: Source
        if loader is None:
            labels, weight = self._value("labelCol") or [], self._value("weightCol")
            first = table_of(paths[0])
            columns = columns_of_table(first.schema, self._value("featuresCol"), labels, weight)
            first = first.select([column.name for column in columns.all]).slice(0, 1)
            columns = self._checked(first, columns, recipe)
            source = Tables(items, columns, decode)
        else:
            source = Paths(items, loader)
        held_out = None
        if validation_paths:
            held = replace(source, items=packed(list(validation_paths)))
            read = [b for place in range(len(held)) for b in held.batches(place, ROWS_READ, None)]
            held_out = joined(read)
        training = Training(source, None, columns, decode, held_out)
        with ExitStack() as stack:
            started = starting(spark, plan, stack)
            probed = probing(spark, recipe.dumped(), plan)
            stack.callback(probed.cancel)

            def prepared() -> Training:
                with phases.phase("probe"):
                    check(probed.result())
                return training

            return self._model(train_on(spark, plan, started, prepared, phases), columns)

    def write(self) -> TorchWriter:
        """Return what saves the estimator; functions need import paths."""
        return TorchWriter(self)

    @classmethod
    def read(cls) -> TorchReader:
        """Return what loads a saved estimator."""
        return TorchReader(cls)

    # Private.

    def _fit(self, dataset: DataFrame, initial: TorchModel | None = None) -> TorchModel:
        console.set_up("info")
        spark, recipe, phases = dataset.sparkSession, self._recipe(), Phases()
        plan = self._plan(spark, recipe, initial)
        features, labels = self._value("featuresCol"), self._value("labelCol") or []
        columns = columns_of(dataset, features, labels, self._value("weightCol"))
        indicator = self._value("validationIndicatorCol")
        if plan.limits is not None and indicator is None:
            raise UsageError(
                "earlyStopping needs rows to validate with: name the column that is true for them, "
                "as validationIndicatorCol"
            )
        if indicator is not None:
            check_indicator(dataset, indicator)
        held = None if indicator is None else F.coalesce(F.col(indicator), F.lit(False))
        kept = dataset if held is None else dataset.where(~held)
        if held is not None and recipe.loss is None:
            raise UsageError("validationIndicatorCol needs loss= to score with, besides trainBatch")
        if plan.limits is not None and self._value("approach") == "direct":
            raise UsageError(
                "earlyStopping needs approach='export': with 'direct' nobody knows when an epoch "
                "is over"
            )
        if initial is not None and self._value("approach") == "direct":
            raise UsageError(
                "initial needs approach='export': with 'direct' the tasks' input is the data alone"
            )
        with ExitStack() as stack:
            started = starting(spark, plan, stack)
            with phases.phase("look"):
                columns = self._looked_at(selected(kept, columns), columns, recipe)
            probed = probing(spark, recipe.dumped(), plan)
            stack.callback(probed.cancel)

            def prepared() -> Training:
                with phases.phase("probe"):
                    check(probed.result())
                return self._prepared(dataset, kept, held, columns, plan, phases, stack)

            return self._model(train_on(spark, plan, started, prepared, phases), columns)

    def _prepared(
        self,
        dataset: DataFrame,
        kept: DataFrame,
        held: Any,
        columns: Columns,
        plan: Plan,
        phases: Phases,
        stack: ExitStack,
    ) -> Training:
        """Return the data to train on, which is kept in `kept`, and that to validate with."""
        held_out, decode = None, self._value("decode")
        if held is not None:
            with phases.phase("held out"):
                held_out = self._held_out(dataset.where(held), columns)
        data = selected(kept, columns)
        if self._value("approach") == "export":
            with phases.phase("export"):
                source = self._exported(data, columns, plan, stack)
            return Training(source, None, columns, decode, held_out)
        spread = self._value("repartition")
        check_determinate(dataset, spread=spread)
        partitions = data.repartition(plan.workers) if spread else data
        return Training(None, partitions, columns, decode, held_out)

    def _held_out(self, data: DataFrame, columns: Columns) -> Batch:
        """Return the rows to validate with."""
        rows = selected(data, columns).toArrow()
        if not rows.num_rows:
            indicator = self._value("validationIndicatorCol")
            raise DataError(f"no row has a true {indicator!r}: nothing to validate with")
        return batch_of(rows, columns, self._value("decode"), "the rows held out")

    def _exported(self, data: DataFrame, columns: Columns, plan: Plan, stack: ExitStack) -> Source:
        """Write the data, to be removed with the stack; return its items."""
        directory = self._value("exportDirectory") or default_directory(data.sparkSession)
        spread = PARTITIONS_PER_WORKER * plan.workers if self._value("repartition") else None
        reuse = self._value("reuseExport")
        files = stack.enter_context(
            exported(data, directory, batch=plan.batch, partitions=spread, reuse=reuse)
        )
        items = items_of(files, batch=plan.batch, workers=plan.workers)
        segments = [[(s.address, s.start, s.rows) for s in item] for item in items]
        return Shards(packed(segments), columns, self._value("decode"))

    def _looked_at(self, data: DataFrame, columns: Columns, recipe: Recipe) -> Columns:
        """Return the columns with their widths, once the model has taken the first row."""
        return self._checked(data.limit(1).toArrow(), columns, recipe)

    def _checked(self, table: pa.Table, columns: Columns, recipe: Recipe) -> Columns:
        """Return the columns with their widths, once the model has taken a row.

        Raises
        ------
        DataError
            If there is none.
        UsageError
            If the model does not take it.
        """
        if not table.num_rows:
            raise DataError("there are no rows to train on")
        batch = batch_of(table, columns, self._value("decode"), "the data")
        model = recipe.make_model().eval()
        if recipe.train_batch is None:
            try:
                with torch.no_grad():
                    recipe.loss_of(model, batch)
            except Exception as error:
                shapes = ", ".join(
                    f"{c.name} {tuple(t.shape[1:])}"
                    for c, t in zip(
                        (*columns.features, *columns.labels),
                        (*batch.inputs, *batch.targets),
                        strict=True,
                    )
                )
                raise UsageError(
                    f"the model or the loss does not take the first row ({shapes}): {error}"
                ) from error

        def width(column: Column, values: torch.Tensor) -> Column:
            found = values.shape[1] if column.kind == "array" else None
            return Column(column.name, column.kind, column.is_integer, found)

        return Columns(
            tuple(map(width, columns.features, batch.inputs)),
            tuple(map(width, columns.labels, batch.targets)),
            columns.weight,
        )

    def _recipe(self) -> Recipe:
        for name in ("model", "loss", "optimizer"):
            if not self.isSet(self.getParam(name)) and not (
                name == "loss" and self._value("trainBatch") is not None
            ):
                raise UsageError(f"TorchEstimator({name}=...) is missing")
        found = Recipe(
            *(self._value(n) for n in ("model", "loss", "optimizer", "trainBatch", "seed"))
        )
        found.check()
        return found

    def _plan(self, spark: SparkSession, recipe: Recipe, initial: TorchModel | None = None) -> Plan:
        limits = self._value("earlyStopping")
        return Plan(
            recipe=recipe,
            workers=self._value("numWorkers") or slots(spark),
            batch=self._value("batchSize"),
            epochs=self._value("epochs"),
            seed=self._value("seed"),
            master=self._value("master"),
            key_file=self._value("keyFile"),
            master_http=self._value("masterHttp"),
            token_file=self._value("masterTokenFile"),
            port=self._value("port"),
            network_mask=self._value("networkMask"),
            settings=self._settings(),
            profile=registered(
                spark,
                self._value("resourceProfile") or profile_of(spark, self._value("workersPerNode")),
            ),
            lease_seconds=self._value("leaseSeconds"),
            checkpoint=self._value("checkpoint"),
            limits=None if limits is None else dict(limits),
            initial=None if initial is None else _initial(initial, recipe),
        )

    def _settings(self) -> dict[str, Any]:
        """Return the settings of `gradwire.join` for workers, and for the driver that founds."""
        mode = self._value("mode")
        found = (self._value("join") or {}) | ({} if mode is None else {"mode": mode})
        resolve_settings(found | {"master": "127.0.0.1:1"}, {})  # before any task runs
        return found

    def _model(self, outcome: Any, columns: Columns | None) -> TorchModel:
        model = TorchModel()
        for param in model.params:
            if self.isSet(self.getParam(param.name)):
                model._set_value(param.name, self._value(param.name))
        model._resetUid(self.uid)
        model.set_trained(outcome, columns)
        return model.setParent(self) if hasattr(model, "setParent") else model


def _initial(model: TorchModel, recipe: Recipe) -> Initial:
    """Return a model as a training begins with it.

    Raises
    ------
    UsageError
        If it is a model of another shape, or has no parameters.
    """
    if model.state is None:
        raise UsageError("initial: this model has no parameters; fit() of an estimator returns one")
    try:
        recipe.make_model().load_state_dict(model.state)
    except RuntimeError as error:
        raise UsageError(f"initial: its parameters are not those of model=: {error}") from error
    return Initial(model.state, model.optimizer)


_PARAMETERS = frozenset(
    name for name in dir(TrainingParams) if not name.startswith("_") and name[0].islower()
)
