"""Jinja for a stranger's template: its sandbox, with a price on every operation and nothing in it that has none.

Jinja compiles a template to Python. Here each operator, comparison, attribute, item, slice, filter, test and call in it goes to
`Values`, which pays before it does it, and each line that is run costs as its length and its brackets: a line without a loop of its own does no more
than that. Nothing is computed while compiling, where nobody counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from jinja2 import TemplateError, Undefined, nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.ext import loopcontrols
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from scdd.data.sandbox_filters import filters, tests
from scdd.data.sandbox_values import OBJECT, STEP, Budget, Method, Values

LINE = 32  # units of a line that is run, beside its length
_FILE = "<template>"  # what Jinja calls the code of a template without a file
# Other templates, and Jinja's second kind of text, which no chat template needs and nobody counts.
_REFUSED = (nodes.Block, nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.EvalContextModifier)
_SCOPES = (nodes.If, nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.With, nodes.AssignBlock)
MOST_SCOPES = 512  # for each, Jinja's compiler goes through all names
_OF_LOOPS = frozenset(
    (
        *("index", "index0", "revindex", "revindex0", "first", "last", "length"),
        *("previtem", "nextitem", "depth", "depth0", "cycle"),
    )
)


class _Generator(CodeGenerator):
    """Sends to the environment what Jinja's own would do in place."""

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self._call("concatenated", node.nodes, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Any) -> None:
        self.write("environment.values.compare(")
        self.visit(node.expr, frame)
        for each in node.ops:
            self.write(f", ({each.op!r}, ")
            self.visit(each.expr, frame)
            self.write(")")
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Any) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.values.cut(")
        self.visit(node.node, frame)
        self.write(", slice(")
        for each in (node.arg.start, node.arg.stop, node.arg.step):
            self.visit(each or nodes.Const(None), frame)
            self.write(", ")
        self.write("))")

    def visit_Dict(self, node: nodes.Dict, frame: Any) -> None:
        self.write("environment.values.mapping((")
        for each in node.items:
            self._call("pair", [each.key, each.value], frame)
            self.write(", ")
        self.write("))")

    def _call(self, name: str, given: list[nodes.Expr], frame: Any) -> None:
        self.write(f"environment.{name}(")
        for each in given:
            self.visit(each, frame)
            self.write(", ")
        self.write(")")


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment in which a template can spend no more than it is given (`rendering`)."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        self.budget = Budget()
        self.values = Values(self.budget.spend)
        self.weights: list[int] = []
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], optimized=False, finalize=_finalized
        )
        self.concat = self.values.joined  # type: ignore[method-assign]
        self.filters: dict[str, Any] = filters(self)
        self.tests: dict[str, Any] = tests(self)
        self.globals: dict[str, Any] = {
            "range": Method(safe_range),
            "dict": Method(self._dict),
            "namespace": Method(self._namespace),
            "raise_exception": Method(self._refuse),
        }

    def template(self, text: str) -> Any:
        """A template of that text; TemplateError or another says what is wrong with it."""
        tree = self.parse(text)
        for each in tree.find_all(_REFUSED):
            raise TemplateError(f"{type(each).__name__.lower()} in line {each.lineno} is nothing for a chat")
        if sum(1 for _ in tree.find_all(_SCOPES)) > MOST_SCOPES:
            raise TemplateError(f"it has more than {MOST_SCOPES} conditions, loops and other blocks")
        return self.from_string(tree)

    def _compile(self, source: str, filename: str) -> CodeType:
        made = (line.count("[") + line.count(",)") for line in ("", *source.split("\n")))  # lists and tuples
        sizes = (2 * len(line) for line in ("", *source.split("\n")))
        self.weights = [LINE + OBJECT * each + size for each, size in zip(made, sizes, strict=True)]
        return super()._compile(source, filename)

    @contextmanager
    def rendering(self, budget: int) -> Iterator[None]:
        """Whoever renders in this block spends `budget`. Lines are seen by a trace: nothing else ends a loop that does nothing."""
        weights, spend = self.weights, self.budget.spend

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                spend(weights[frame.f_lineno])
            return line

        def called(frame: FrameType, event: str, _: Any) -> Any:
            return line if frame.f_code.co_filename == _FILE else None

        self.budget.left = budget
        before = sys.gettrace()
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)

    def concatenated(self, *parts: Any) -> str:
        """a ~ b ~ c."""
        return self.values.joined([self.values.text(each) for each in parts])

    @staticmethod
    def pair(key: Any, value: Any) -> tuple[Any, Any]:
        """An entry of a dictionary."""
        return key, value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """left operator right."""
        return self.values.compute(operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """obj[argument], or its attribute."""
        values = self.values
        values.spend(STEP)
        if isinstance(obj, Undefined):
            return obj[argument]
        if isinstance(obj, dict) and values.key(argument) in obj:
            return obj[argument]
        if isinstance(obj, (str, list, tuple, range)) and isinstance(argument, int):
            return (
                obj[argument] if -len(obj) <= argument < len(obj) else self.undefined(obj=obj, name=argument)  # type: ignore[arg-type]
            )
        if isinstance(argument, str) and not isinstance(obj, dict):
            return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument[:60] if isinstance(argument, str) else type(argument).__name__)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """obj.attribute, or its item: what has a price, and nothing else."""
        self.values.spend(STEP + len(attribute))
        if isinstance(obj, Undefined):
            return obj[attribute]
        if attribute.startswith("_"):
            return self.unsafe_undefined(obj, attribute[:60])
        found = self.values.method(obj, attribute)
        if found is not None:
            return found
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        if isinstance(obj, LoopContext):
            if attribute == "changed":
                return Method(self._changed, obj)
            if attribute in _OF_LOOPS:
                return Method(obj.cycle) if attribute == "cycle" else getattr(obj, attribute)
        if isinstance(obj, Namespace):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        return self.undefined(obj=obj, name=attribute[:60])

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what may be called."""
        __self.values.spend(STEP + OBJECT * (len(args) + len(kwargs)))
        if not isinstance(__obj, (Method, Macro, LoopContext, Undefined)):
            raise TypeError(f"a {type(__obj).__name__} cannot be called")
        return super().call(__context, __obj, *args, **kwargs)

    def _changed(self, loop: LoopContext, *value: Any) -> bool:
        self.values.walk(value)
        return loop.changed(*value)

    def _dict(self, given: Any = (), **named: Any) -> dict[Any, Any]:
        pairs = list(given.items()) if isinstance(given, dict) else self.values.elements(given)
        return self.values.mapping([*pairs, *named.items()])

    def _namespace(self, *given: Any, **named: Any) -> Any:
        return Namespace(self._dict(*given, **named))

    def _refuse(self, message: Any) -> None:
        raise TemplateError(self.values.text(message)[:1000])


@pass_context
def _finalized(context: Any, value: Any) -> str:
    """What is written. That it takes the context keeps Jinja from writing constants while it compiles."""
    text: str = context.environment.values.text(value)
    return text
