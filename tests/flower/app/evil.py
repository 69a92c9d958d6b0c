"""What a hostile client may answer with: headers, records and bodies that nobody's reader expects."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

DESCR = (
    "'<i4' '<i8' '|i1' '<f8' '|O' '<i99' ('<i8',(2,)) [('a','<i8')] '<M8[ns]' '|V0' '' None 7 {} '?' 'i4,i4'"
)
LENGTHS = (
    "0 1 2 3 7 -1 -7 True False None 1.5 10**30 1000000000000 18446744073709551616 'a' (7,) 00 0x7 7_0 7j"
)


def header(draw):
    """The head of an array file, wrong in some way or right, as bytes."""
    count = draw.choice([0, 1, 1, 1, 2, 3, 33, 64, 65, 300])
    shape = "(" + "".join(f"{draw.choice(LENGTHS.split())}, " for _ in range(count)) + ")"
    descr, flag = draw.choice(DESCR.split()), draw.choice(["True", "False", "1", "None"])
    text = draw.choice(
        [
            f"{{'descr': {descr}, 'fortran_order': {flag}, 'shape': {shape}, }}",
            f"{{'shape': {shape}, 'descr': {descr}, 'fortran_order': False}}",
            f"{{'descr': {descr}, 'fortran_order': False, 'shape': (7,), 'more': {shape}, }}",
            f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}",
            f"{{'descr': '<i4', 'fortran_order': False, 'shape': (7,), }}{shape}",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (7,), }",
            "{'descr': '<i1', 'fortran_order': True, 'shape': (2, 7), }",
            "(" * draw.randrange(9000),
            "-" * draw.randrange(9000) + "1",
            "[" * 200 + "]" * 200,
            "\0" * 60,
            "é" * 30,
            "",
        ]
    ).encode("utf-8", "replace")
    text += draw.choice([b"\n", b"", b" " * 50 + b"\n", b"\n\n"])
    version = draw.choice([b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x00\x00", b"\xff\xff"])
    width = 2 if version == b"\x01\x00" else 4
    length = draw.choice([len(text), len(text), len(text), 0, 2**16 - 1])
    return draw.choice([b"\x93NUMPY"] * 9 + [b"NUMPY"]) + version + length.to_bytes(width, "little") + text


def bytes_of(draw):
    """The bytes of an array."""
    body = draw.randbytes(draw.choice([0, 1, 7, 14, 28, 28, 28, 56, 1000]))
    found = draw.choice([header(draw) + body] * 8 + [body])
    return found[: draw.choice([len(found)] * 5 + [draw.randrange(len(found) + 1)])]


def array(draw):
    """An array whose bytes are odd, as is what stands beside them."""
    kind = draw.choice(["numpy.ndarray"] * 9 + ["pickle"])
    return Array(draw.choice(["int32", "", "x"]), draw.choice([(7,), (), (2, 3)]), kind, bytes_of(draw))


VALUES = (0, -1, 2**62, 1.5, float("nan"), "", "x", b"", b"\xff" * 16, True, [], [1, 2], [b"a"], ["", "x"])
NAMES = ["update", "count", "metrics", "who", "anechoic", "arrays", "round", "stage"]


def record(draw):
    """A record of any kind, with names and values of the protocol in the wrong places."""
    kind = draw.randrange(4)
    if kind == 0:
        numbers = [value for value in VALUES if type(value) in (int, float)]
        return MetricRecord({draw.choice(NAMES): draw.choice(numbers) for _ in range(3)})
    if kind == 1:
        return ConfigRecord({draw.choice(NAMES): draw.choice(VALUES) for _ in range(5)})
    return ArrayRecord({draw.choice(["update", "update", "w"]): array(draw)})


def contents(draw):
    """What stands in the place of an update."""
    if draw.random() < 0.1:
        return Error(draw.choice([0, 1, 2, 3, 77, 2**31 - 1]), draw.choice(["", "x" * 1000]))
    found = RecordDict({draw.choice(NAMES): record(draw) for _ in range(draw.randrange(3))})
    if draw.random() < 0.7:
        found["update"] = ArrayRecord({"update": array(draw)})
    return found


class ConfigBody(ConfigRecord):
    """A record whose head is that of a `ConfigRecord`, and whose body is no message of protobuf."""

    __qualname__ = ConfigRecord.__qualname__

    def deflate(self):
        """The head as it must be, and a body that ends in the middle of a field."""
        return add_header_to_object_body(b"\x0a\xff\xff\xff\xff\xff", self)


def no_message():
    """A content that the SuperLink takes, and nobody can read."""
    return RecordDict({"update": ConfigBody()})
