"""Display filters: a subset of Wireshark's language over :data:`rocemu.audit.field_table.FIELDS`.

::

    test        field | field OP value | field in {value, low..high} | field matches "regex"
    OP          == != < > <= >=  eq ne lt gt le ge  contains
    field       a name, or a part of it: name[4:2] name[4-5] name[4] name[:2] name[-4:]
    expression  tests with ! && || (not and or) and parentheses

As in Wireshark a field that occurs several times matches when one of its values does, ``!=`` when
all differ, and nothing matches a field that the packet does not have.  All else that Wireshark
knows (functions, bitwise ``&``, arithmetic, layers, ``===``) is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rocemu.audit.field_table import ALIASES, FIELDS
from rocemu.audit.fields import Value
from rocemu.audit.filter_values import (
    COMPARISONS,
    FilterError,
    Operand,
    Test,
    between,
    field_operand,
    parse_slice,
    pattern,
    read_value,
)

if TYPE_CHECKING:
    from rocemu.audit.dissect import Dissected

__all__ = ["FilterError", "compile_filter"]

Predicate = Callable[["Dissected"], bool]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>r?"(?:[^"\\]|\\.)*")
    | (?P<slice>\[[^\]]*\])
    | (?P<op>==|!=|<=|>=|&&|\|\||\.\.|[<>!(){},])
    | (?P<word>[\w:](?:[\w:/-]|\.(?!\.))*)
    )""",
    re.VERBOSE | re.DOTALL,
)
_REFUSED = re.compile(r"===|!==|~=")
_WORDS = {"not": "!", "and": "&&", "or": "||", "eq": "==", "ne": "!=", "lt": "<", "gt": ">",
          "le": "<=", "ge": ">="}  # fmt: skip
_WORD_OPERATORS = ("contains", "matches", "in")
_DEEPEST = 100  # parentheses and negations within each other


class _Token(NamedTuple):
    kind: str
    """``text``, ``slice``, ``op``, ``word`` or ``end``."""
    text: str
    at: int


def compile_filter(text: str) -> Predicate:
    """A test on dissected packets; raises FilterError, which knows the position."""
    return _Parser(text).parse()


def _tokens(text: str) -> list[_Token]:
    tokens = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        start = at + len(text[at:]) - len(text[at:].lstrip())
        if found is None or (_REFUSED.match(text, start) and text[start] not in '["'):
            wrong = _REFUSED.match(text, start)
            raise FilterError(f"{wrong[0] if wrong else text[start]!r} is not supported", start)
        kind, word = found.lastgroup or "", found[found.lastgroup or 0]
        if kind == "word" and word in _WORDS:
            kind, word = "op", _WORDS[word]
        elif kind == "word" and word in _WORD_OPERATORS:
            kind = "op"
        tokens.append(_Token(kind, word, start))
        at = found.end()
    return [*tokens, _Token("end", "", len(text))]


class _Parser:
    """Recursive descent, one method a rule; each gives a closure that tests a packet."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def parse(self) -> Predicate:
        if self._next.kind == "end":
            raise FilterError("the filter is empty", 0)
        test = self._or()
        if self._next.kind != "end":
            raise FilterError(f"{self._next.text!r} is not expected here", self._next.at)
        return test

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _taken(self, *operators: str) -> str | None:
        if self._next.kind == "op" and self._next.text in operators:
            return self._take().text
        return None

    def _expect(self, operator: str) -> None:
        if not self._taken(operator):
            found = repr(self._next.text) if self._next.text else "the end"
            raise FilterError(f"{operator!r} is expected, not {found}", self._next.at)

    def _or(self) -> Predicate:
        tests = [self._and()]
        while self._taken("||"):
            tests.append(self._and())
        return tests[0] if len(tests) == 1 else lambda packet: any(test(packet) for test in tests)

    def _and(self) -> Predicate:
        tests = [self._not()]
        while self._taken("&&"):
            tests.append(self._not())
        return tests[0] if len(tests) == 1 else lambda packet: all(test(packet) for test in tests)

    def _not(self) -> Predicate:
        start = self._next.at
        if self._depth > _DEEPEST:
            raise FilterError(f"more than {_DEEPEST} levels", start)
        if not self._taken("!"):
            return self._primary()
        self._depth += 1
        test = self._not()
        self._depth -= 1
        return lambda packet: not test(packet)

    def _primary(self) -> Predicate:
        if not self._taken("("):
            return self._test()
        self._depth += 1
        test = self._or()
        self._depth -= 1
        self._expect(")")
        return test

    def _test(self) -> Predicate:
        left = self._field()
        operator = self._next
        if self._taken("matches"):
            return _any(left, pattern(self._literal(), left))
        if self._taken("in"):
            return _any(left, self._set(left))
        if self._taken(*COMPARISONS):
            return self._comparison(left, operator)
        return lambda packet: bool(left.values(packet))

    def _comparison(self, left: Operand, operator: _Token) -> Predicate:
        compare = COMPARISONS[operator.text]
        compare.check(left, operator.at)
        join = all if compare.of_all else any
        if self._next.kind == "word" and (name := self._next.text) in FIELDS | ALIASES:
            at = self._next.at
            right = self._field()
            if left.of != right.of:
                raise FilterError(f"{left.name} and {name} are not of one kind", at)

            def both(packet: Dissected) -> bool:
                pairs = [(a, b) for a in left.values(packet) for b in right.values(packet)]
                return bool(pairs) and join(compare.test(a, b) for a, b in pairs)

            return both
        token = self._literal()
        test = compare.against(read_value(token.text, token.at, left))

        def one(packet: Dissected) -> bool:
            values = left.values(packet)
            return bool(values) and join(test(value) for value in values)

        return one

    def _field(self) -> Operand:
        token = self._take()
        if token.kind != "word":
            found = repr(token.text) if token.text else "the end"
            raise FilterError(f"a field is expected, not {found}", token.at)
        if token.text not in FIELDS and token.text not in ALIASES:
            if self._next.text == "(":
                raise FilterError(f"functions ({token.text}) are not supported", token.at)
            close = difflib.get_close_matches(token.text, [*FIELDS, *ALIASES], 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise FilterError(f"no field {token.text}{hint}", token.at)
        operand = field_operand(token.text)
        while self._next.kind == "slice":
            piece = self._take()
            operand = operand.sliced(parse_slice(piece.text, piece.at), piece.at)
        return operand

    def _literal(self) -> _Token:
        token = self._take()
        if token.kind not in ("word", "text"):
            found = repr(token.text) if token.text else "the end"
            raise FilterError(f"a value is expected, not {found}", token.at)
        return token

    def _set(self, left: Operand) -> Test:
        self._expect("{")
        tests: list[Test] = []
        while True:
            low = self._literal()
            first = read_value(low.text, low.at, left)
            if self._taken(".."):
                high = self._literal()
                tests.append(between(first, read_value(high.text, high.at, left)))
            else:
                tests.append(COMPARISONS["=="].against(first))
            if not self._taken(","):
                break
        self._expect("}")
        return lambda value: any(test(value) for test in tests)


def _any(left: Operand, test: Callable[[Value], bool]) -> Predicate:
    return lambda packet: any(test(value) for value in left.values(packet))
