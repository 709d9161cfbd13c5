#!/usr/bin/env python3
"""Differential test: nibble's template interpreter against jinja2, set up as transformers does.

  template_parity.py --program build/dev/nibble [--count 10000]

Random template programs are rendered by both; the outputs must be equal, and where one raises an
error the other must too (the words may differ). Exit code 1 if there was a difference.
"""
import argparse
import json
import random
import sys
import warnings

import jinja2
import jinja2.ext
import jinja2.sandbox

from support.driver import Driver, driver_of


class Generation(jinja2.ext.Extension):
    """{% generation %}: a transparent block with a scope of its own."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def make_environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


CONTEXT = {
    "messages": [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": " Hi <b>there</b>, what's \"up\"? "},
        {"role": "assistant", "content": None, "tool_calls": [
            {"function": {"name": "f", "arguments": {"x": 1, "y": [1.5, True, None], "s": "é\n"}}}]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nÄpfel ÇA VA straße"},
    ],
    "extra": {
        "n": 7, "m": -3, "f": 2.5, "zero": 0, "s": "Hello, World", "u": "日本 ñandú\tx", "empty": "", "yes": True,
        "no": False, "nothing": None, "list": [3, 1, 2, 3], "words": ["b", "a", "C", "b"], "nested": [[1, 2], [3], []],
        "d": {"b": 1, "a": "x", "items": [1], "k": {"z": 0.1}}, "big": 12345678901, "e": 1e20, "tiny": 0.00001,
        "rows": [{"k": "x", "v": 3}, {"k": "Y", "v": 1}, {"k": "x", "v": 2}], "quote": "it's", "both": "'\"\\",
    },
}
# Expressions by the type they mostly have, so that most programs do something before they fail.
NAMES = {
    "str": ["s", "u", "empty", "quote", "both", "'a'", "\"it's\"", "'x\\ty'", "' pad '", "''", "messages[1].content",
            "messages[-1].content", "d.a", "'a,b,,c'", "'12'", "'Éß ñ'", "'%s-%%'", "bos_token"],
    "num": ["n", "m", "f", "zero", "big", "e", "tiny", "1", "0", "-2", "3.0", "1.5", "10", "true", "messages|length", "yes"],
    "list": ["list", "words", "nested", "[]", "[1, 2]", "['b', 'a']", "(1, 'a')", "(2,)", "range(4)", "rows", "messages",
             "messages[1:]", "d.values()|list", "words[::-1]"],
    "dict": ["d", "d.k", "{}", "{'a': 1}", "{'k': [1], 2: none}", "rows[0]", "messages[0]", "messages[2].tool_calls[0].function"],
    "any": ["nothing", "none", "missing", "yes", "no", "x", "y", "i", "loop", "ns", "loop.index", "loop.last", "d.nope",
            "messages[2].content", "missing.deeper", "loop.previtem"],
}
STR_STR = ["upper", "lower", "title", "capitalize", "trim", "string", "reverse", "replace('a', 'b')", "indent", "indent(2, true)",
           "truncate(5)", "urlencode", "default('d')", "d('z', true)", "safe", "escape", "trim('H ')", "format(1)", "e",
           "replace('l', '<', 1)", "truncate(6, true, '!')", "indent('> ', false, true)", "forceescape"]
STR_METHODS = [".upper()", ".lower()", ".strip()", ".lstrip()", ".rstrip()", ".strip('Hd ')", ".replace('l', 'L')", ".title()",
               ".capitalize()", ".zfill(4)", ".center(9)", ".ljust(14, '.')", ".swapcase()", ".removeprefix('He')",
               ".casefold()", ".format(1)", "[1:]", "[:1]", "[::-1]", "[1:3]", "[::2]", "[-3:]", ".rjust(12)", ".replace('', '-')",
               ".replace('l', '', 1)", ".removesuffix('d')", ".join(['a', 'b'])", ".split('</think>')[-1].lstrip('\\n')",
               "[0]", "[-1]", "[100:]", "[5:1:-2]"]
STR_LIST = [".split()", ".split(',')", ".split(' ', 1)", ".rsplit(' ', 1)", ".splitlines()", ".partition('l')", "|list",
            ".rpartition(',')", ".rsplit(none, 1)", ".split('l')", "|batch(3)|list", ".splitlines(true)", ".split(none, 2)"]
STR_NUM = ["|length", "|wordcount", "|int", "|float", ".find('o')", ".count('l')", ".rfind('l')", "|count", ".find('z')", "|int(9)",
           ".count('')", ".find('l', 4)"]
STR_BOOL = [".startswith('H')", ".endswith('d')", ".isdigit()", ".isalpha()", ".isupper()", ".isspace()", ".islower()",
            ".startswith(('a', 'H'))", ".isalnum()", ".startswith('e', 1)"]
NUM_NUM = ["abs", "int", "float", "round", "round(1)", "round(1, 'ceil')", "round(0, 'floor')", "default(3)"]
LIST_LIST = ["list", "sort", "reverse|list", "unique|list", "map('string')|list", "sort(reverse=true)", "select|list",
             "batch(2)|list", "reject('none')|list", "select('string')|list", "select('number')|list", "map('upper')|list",
             "reject('equalto', 1)|list", "select('in', [1, 2, 'a'])|list", "map('length')|list", "batch(2, 'f')|list",
             "map('default', 7)|list", "sort(case_sensitive=true)", "unique(case_sensitive=true)|list", "map('tojson')|list"]
ROWS = ["map(attribute='k')|list", "sort(attribute='v')", "selectattr('k', 'equalto', 'x')|list", "rejectattr('v', 'gt', 1)|list",
        "unique(attribute='k')|list", "map(attribute='q', default='?')|list", "selectattr('k')|list", "max(attribute='v')",
        "sum(attribute='v')", "join('-', attribute='k')", "sort(attribute='k,v')", "selectattr('q', 'defined')|list",
        "map(attribute='v')|sum", "sort(attribute='k', reverse=true)|map(attribute='v')|join(',')", "min(attribute='k')"]
LIST_ANY = ["first", "last", "length", "join(', ')", "sum", "min", "max", "tojson", "tojson(indent=2)", "join", "string"]
DICT_ANY = ["dictsort", "items|list", "tojson", "tojson(indent=4)", "length", "list", "string", "dictsort(reverse=true)",
            "tojson(sort_keys=true)", "dictsort(by='value')", "first", "tojson(separators=(',', ':'))", "tojson(ensure_ascii=true)"]
DICT_METHODS = [".items()|list", ".keys()|list", ".values()|list", ".get('a')", ".get('q', 5)", ".a", ".b", "['a']", "['items']",
                ".items()", ".keys()", ".nope", "['nope']", ".role", ".k.z", ".values()"]
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "sequence", "iterable", "boolean", "integer", "float",
         "true", "false", "equalto(1)", "eq 'a'", "in [1, 2, 'a']", "sameas none", "ne 2", "not none", "not string",
         "not defined", "callable", "escaped"]


class Writer:
    def __init__(self, rng):
        self.rng = rng
        self.macros = 0

    def expr(self, depth=0):
        return self.of(self.rng.choice(["str", "str", "num", "list", "dict", "bool", "bool", "any", "wild"]), depth)

    def atom(self, kind, depth):
        text = self.of(kind, depth + 1)
        return text if text.isidentifier() or self.rng.random() < 0.05 else f"({text})"

    def of(self, kind, depth):
        rng = self.rng
        atom = lambda kind: self.atom(kind, depth)
        if kind == "wild":  # any operator on anything
            anything = ["str", "num", "list", "dict", "any"]
            if rng.random() < 0.5:
                operator = rng.choice(["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "and", "or", "in", "not in"])
                return f"{atom(rng.choice(anything))} {operator} {atom(rng.choice(anything))}"
            tail = rng.choice(STR_METHODS + DICT_METHODS + ["|" + f for f in STR_STR + NUM_NUM + LIST_LIST + LIST_ANY])
            return f"{atom(rng.choice(anything))}{tail}"
        if depth > 3 or rng.random() < 0.25:
            return rng.choice(NAMES["num" if kind == "bool" else kind])
        if rng.random() < 0.06:
            return f"{self.of(kind, depth + 1)} if {atom('bool')} else {self.of(kind, depth + 1)}"
        if rng.random() < 0.04:
            return f"{atom('bool')} {rng.choice(['and', 'or'])} {atom(kind)}"
        pick = rng.random()
        if kind == "str":
            if pick < 0.4:
                return f"{atom('str')}{rng.choice(STR_METHODS)}"
            if pick < 0.7:
                return f"{atom('str')}|{rng.choice(STR_STR)}"
            if pick < 0.85:
                return f"{atom('str')} {rng.choice(['+', '~'])} {atom('str')}"
            if pick < 0.95:
                return f"{atom(rng.choice(['num', 'list', 'dict', 'any']))} ~ {atom('str')}"
            return rng.choice([f"{atom('str')} * {rng.randint(0, 3)}", f"'%s|%5.1f|%-4d|%r' % (1, {atom('num')}, 2, {atom('list')})",
                               f"'%s' % {atom('num')}", f"'{{}} {{a}}'.format(1, a={atom('str')})"])
        if kind == "num":
            if pick < 0.5:
                return f"{atom('num')} {rng.choice(['+', '-', '*', '/', '//', '%', '+', '-'])} {atom('num')}"
            if pick < 0.6:
                return f"{atom('num')} ** {rng.choice(['2', '0', '-1', '3'])}"
            if pick < 0.8:
                return f"{atom('num')}|{rng.choice(NUM_NUM)}"
            if pick < 0.9:
                return f"-{atom('num')}"
            return f"{atom('str')}{rng.choice(STR_NUM)}"
        if kind == "list":
            if pick < 0.35:
                return f"{atom('list')}|{rng.choice(LIST_LIST)}"
            if pick < 0.5:
                return f"{atom('list')}{rng.choice(['[1:]', '[::-1]', '[:2]', '[-2:]', '[::2]', '[5:]', '[3:0:-1]'])}"
            if pick < 0.6:
                return f"{atom('list')} + {atom('list')}"
            if pick < 0.75:
                return f"{atom('str')}{rng.choice(STR_LIST)}"
            if pick < 0.85:
                return f"[{self.of('any', depth + 1)}, {self.of('str', depth + 1)}, {self.of('num', depth + 1)}]"
            return f"{atom('dict')}{rng.choice(['.items()|list', '|list', '.values()|list', '|dictsort'])}"
        if kind == "dict":
            return f"{{'a': {self.of('any', depth + 1)}, 'b': {self.of('num', depth + 1)}, {atom('num')}: 1}}" if pick < 0.5 else \
                rng.choice(NAMES["dict"])
        if kind == "bool":
            if pick < 0.35:
                return f"{atom(rng.choice(['str', 'num', 'list', 'dict', 'any']))} is {rng.choice(TESTS)}"
            if pick < 0.5:
                return f"{atom('num')} {rng.choice(['<', '>', '<=', '>=', '==', '!='])} {atom('num')}"
            if pick < 0.6:
                return f"{atom('str')} {rng.choice(['<', '==', 'in', 'not in', '!='])} {atom('str')}"
            if pick < 0.7:
                return f"{atom(rng.choice(['str', 'num', 'any']))} {rng.choice(['in', 'not in'])} {atom(rng.choice(['list', 'dict']))}"
            if pick < 0.85:
                return f"{atom('str')}{rng.choice(STR_BOOL)}"
            if pick < 0.95:
                return f"not {atom('bool')}"
            return f"{atom('num')}|int is {rng.choice(['odd', 'even', 'divisibleby 2', 'gt 1', 'lt(3)'])}"
        if pick < 0.3:
            return f"{atom('list')}|{rng.choice(LIST_ANY)}"
        if pick < 0.5:
            return f"{atom('dict')}|{rng.choice(DICT_ANY)}"
        if pick < 0.7:
            return f"{atom('dict')}{rng.choice(DICT_METHODS)}"
        if pick < 0.85:
            return f"rows|{rng.choice(ROWS)}"
        return f"{atom('list')}{rng.choice(['[0]', '[-1]', '[9]', '.nope', '[1]'])}"

    def tag(self, text):
        return "{%" + self.rng.choice(["", "", "-", "+"]) + " " + text + " " + self.rng.choice(["", "", "-"]) + "%}"

    def out(self, text):
        return "{{" + self.rng.choice(["", "-"]) + " " + text + " " + self.rng.choice(["", "-"]) + "}}"

    def text(self):
        return self.rng.choice(["", " ", "\n", "\n  ", "a", " b ", "\n\n", "x\n", "\t", "{# c #}", "{#- c -#}", "  {# c #}\n", "}", "{"])

    def body(self, depth):
        return "".join(self.statement(depth) + self.text() for _ in range(self.rng.randint(1, 3)))

    def statement(self, depth):
        rng = self.rng
        kind = rng.random()
        if depth > 2 or kind < 0.45:
            return self.out(self.expr())
        if kind < 0.55:
            return self.tag(f"set {rng.choice(['x', 'y'])} = {self.expr()}")
        if kind < 0.7:
            text = self.tag(f"if {self.expr()}") + self.body(depth + 1)
            if rng.random() < 0.3:
                text += self.tag(f"elif {self.expr()}") + self.body(depth + 1)
            if rng.random() < 0.5:
                text += self.tag("else") + self.body(depth + 1)
            return text + self.tag("endif")
        if kind < 0.85:
            head = rng.choice(["i in {}", "i in {} if i", "i in {}"]).format(self.atom("list", 1))
            if rng.random() < 0.3:
                head = f"i, x in {self.atom('dict', 1)}.items()"
            text = self.tag(f"for {head}") + self.body(depth + 1)
            if rng.random() < 0.2:
                text += self.tag("if loop.index > 1") + self.tag(rng.choice(["break", "continue"])) + self.tag("endif")
            if rng.random() < 0.3:
                text += self.tag("else") + self.body(depth + 1)
            return text + self.tag("endfor")
        if kind < 0.88:
            return (self.tag("set ns = namespace(a=1, b='q')") + self.tag(f"set ns.a = {self.expr()}") + self.out("ns.a")
                    + self.out("ns.b"))
        if kind < 0.91:
            self.macros += 1
            name = f"mac{self.macros}"
            text = self.tag(f"macro {name}(i, x=2)") + self.body(depth + 1) + self.tag("endmacro")
            call = rng.choice([f"{name}(1)", f"{name}({self.expr()}, x={self.expr()})", f"{name}()", f"{name}(1, 2, 3)"])
            return text + self.out(call)
        if kind < 0.94:
            return self.tag("set x") + self.body(depth + 1) + self.tag("endset") + self.out("x")
        if kind < 0.96:
            return self.tag(f"filter {rng.choice(['upper', 'trim', 'length', 'title'])}") + self.body(depth + 1) + self.tag("endfilter")
        if kind < 0.98:
            return self.tag(f"with y = {self.expr()}") + self.body(depth + 1) + self.tag("endwith")
        return self.tag("generation") + self.body(depth + 1) + self.tag("endgeneration")


def skip(source, expected, error, found):
    """Cases where no comparison is wanted: identities, and differences that are documented."""
    return any(mark in (expected or "") for mark in (
        " object at 0x", "<generator", "<bound method", "<built-in", "<function", "<class", "<Macro", "<LoopContext",
        "<Namespace", "_iterator", "reverseiterator", "<Undefined")) or (
        # Errors of generators come where they are made, not where they are read.
        "items" in source and "Can only get item pairs" in str(error) + found.get("error", "")) or (
        # Integers of more than 100 bits are refused; slices of constants that have none are an error.
        # Unknown filters are an error where they run, not where they are written.
        "No filter named" in str(error) or "integer is too large" in found.get("error", "") or "not subscriptable" in found.get("error", ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=10)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # Python's remarks on what jinja2 compiles
    env = make_environment()
    driver = Driver(driver_of(args.program))
    rng = random.Random(args.seed)
    bad = rendered = failed = skipped = 0
    for number in range(args.count):
        writer = Writer(rng)
        source = writer.body(0) if rng.random() < 0.5 else writer.out(writer.expr())
        variables = dict(CONTEXT["extra"], messages=CONTEXT["messages"], tools=None, documents=None,
                         bos_token="<s>", eos_token="</s>", add_generation_prompt=False)
        try:
            expected, error = env.from_string(source).render(variables), None
        except Exception as exception:  # any: what jinja2 raises is Python's own errors too
            expected, error = None, f"{type(exception).__name__}: {exception}"
        found = driver.ask(template=source, messages=CONTEXT["messages"], extra=CONTEXT["extra"])
        if skip(source, expected, error, found):
            skipped += 1
            continue
        rendered += expected is not None
        failed += expected is None
        if (expected is None) != ("error" in found) or (expected is not None and expected != found["text"]):
            bad += 1
            if bad <= args.show:
                print(f"case {number}: {source!r}\n  expected {expected!r} {error}\n  found    {found}")
    print(f"{args.count} templates: {rendered} rendered, {failed} refused, {skipped} not compared, {bad} differences")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
