"""An executable specification of sealed records in `construct`, made from the layouts of `sealed.py`."""

from construct import Bytes, Const, Construct, GreedyBytes, Int8ub, Int16ub, Int32ub, Int64ub, Struct

from dos_protocol.sealed import RESERVED, SealedLayout

_NUMBERS = {"B": Int8ub, "H": Int16ub, "I": Int32ub, "Q": Int64ub, "16s": Bytes(16)}


def specification_of(layout: SealedLayout) -> Construct:
    """The bytes before the digest."""
    fields = [
        Const(0, Int8ub) if field is RESERVED else field.name / _NUMBERS[field.code]
        for field in layout.fields
    ]
    rest = ["rest" / GreedyBytes] if layout.rest else []
    return Struct(Const(layout.magic), Const(layout.version, Int8ub), *fields, *rest)
