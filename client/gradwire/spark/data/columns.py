"""`Columns`: which columns a model is trained on, and how they become arrays.

What cannot work is refused by the types of the columns, before the cluster works.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from gradwire.spark.errors import DataError

Kind = Literal["scalar", "array", "binary"]

INTEGERS: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.BooleanType)
NUMBERS: Final = (*INTEGERS, T.FloatType, T.DoubleType, T.DecimalType)


@dataclass(frozen=True, slots=True)
class Column:
    """One column, and how it is read."""

    name: str
    """In the user's DataFrame."""
    kind: Kind
    is_integer: bool
    """Whether its tensors have integers, int64; the others have float32. Binary ones have uint8."""
    width: int | None = None
    """Elements of each array; None for scalars, and where it was not looked at."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of batches, in their order: features, labels, weight."""

    features: tuple[Column, ...]
    labels: tuple[Column, ...]
    weight: Column | None

    @property
    def all(self) -> tuple[Column, ...]:
        """All of them, in the order of batches."""
        return (*self.features, *self.labels, *((self.weight,) if self.weight else ()))


def columns_of(
    data: DataFrame, features: Sequence[str], labels: Sequence[str], weight: str | None
) -> Columns:
    """Return the columns of these names.

    Raises
    ------
    DataError
        If a column is missing, or its type is none that tensors can be made of.
    """
    found = Columns(
        tuple(_column(data, name, "feature") for name in features),
        tuple(_column(data, name, "label") for name in labels),
        None if weight is None else _column(data, weight, "weight"),
    )
    if found.weight is not None and found.weight.kind != "scalar":
        raise DataError(f"column {weight!r} is the weight of a row: it has to be one number")
    return found


def columns_of_table(
    schema: pa.Schema, features: Sequence[str], labels: Sequence[str], weight: str | None
) -> Columns:
    """Return the columns of files of Arrow or Parquet.

    Raises
    ------
    DataError
        As `columns_of`.
    """
    return Columns(
        tuple(_column_of_table(schema, name, "feature") for name in features),
        tuple(_column_of_table(schema, name, "label") for name in labels),
        None if weight is None else _column_of_table(schema, weight, "weight"),
    )


def check_indicator(data: DataFrame, name: str) -> None:
    """Refuse a column that does not say which rows validate.

    Raises
    ------
    DataError
        If it is missing, or has no truth values.
    """
    kind = _field(data, name, "validation indicator").dataType
    if not isinstance(kind, T.BooleanType):
        raise DataError(
            f"validation indicator column {name!r} is of type {kind.simpleString()}; it has to be "
            "boolean: true for rows that are held out"
        )


def selected(data: DataFrame, columns: Columns) -> DataFrame:
    """Return the columns alone, named by their place, as plain numbers, arrays and bytes."""
    return data.select(
        [expression(data, c).alias(f"c{place}") for place, c in enumerate(columns.all)]
    )


def _column(data: DataFrame, name: str, role: str) -> Column:
    field = _field(data, name, role)
    match field.dataType:
        case T.ArrayType(elementType=element) if isinstance(element, NUMBERS):
            return Column(name, "array", isinstance(element, INTEGERS))
        case T.BinaryType():
            return Column(name, "binary", is_integer=False)
        case kind if isinstance(kind, NUMBERS):
            return Column(name, "scalar", isinstance(kind, INTEGERS))
        case kind if kind.typeName() in {"vector", "vectorudt"}:
            return Column(name, "array", is_integer=False)
        case T.StringType():
            raise DataError(
                f"{role} column {name!r} is text: turn it into numbers first, such as with "
                "pyspark.ml.feature.StringIndexer"
            )
        case kind:
            raise DataError(
                f"{role} column {name!r} is of type {kind.simpleString()}; it has to be a number, "
                "an array of numbers, a vector or binary"
            )


def _column_of_table(schema: pa.Schema, name: str, role: str) -> Column:
    place = schema.get_field_index(name)
    if place < 0:
        raise DataError(f"no {role} column {name!r}; there are {', '.join(schema.names)}")
    kind = schema.field(place).type
    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind):
        return Column(name, "binary", is_integer=False)
    is_array = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    element = kind.value_type if is_array else kind
    if not (types.is_integer(element) or types.is_floating(element)):
        raise DataError(
            f"{role} column {name!r} is of type {kind}; it has to be a number, an array of numbers "
            "or binary"
        )
    return Column(name, "array" if is_array else "scalar", types.is_integer(element))


def _field(data: DataFrame, name: str, role: str) -> T.StructField:
    for field in data.schema.fields:
        if field.name == name:
            return field
    raise DataError(f"no {role} column {name!r}; there are {', '.join(data.columns)}")


def expression(data: DataFrame, column: Column) -> Any:
    """Return the column as plain numbers, arrays or bytes, of the type that its tensor has."""
    found = F.col(f"`{column.name}`")
    kind = data.schema[column.name].dataType
    element = "bigint" if column.is_integer else "float"
    if column.kind == "binary":
        return found
    if kind.typeName() in {"vector", "vectorudt"}:
        # Imported here: tasks read this module without it, and it loads pandas and scipy.
        from pyspark.ml.functions import vector_to_array

        return vector_to_array(found, dtype="float32")
    return found.cast(f"array<{element}>" if column.kind == "array" else element)
