"""The accuracy gate's tasks are sound, and it fails where a figure misses its limit."""

import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gate  # noqa: E402

TASKS = [json.loads(line) for line in (gate.HERE / "tasks.jsonl").read_text().splitlines()]


class FakeServer:
    """Finds one continuation likelier than the others, and answers sums with a text."""

    def __init__(self, likely="", answer=""):
        self.likely, self.answer, self.asked = likely, answer, []

    def json(self, method, path, body):
        self.asked.append(body)
        if isinstance(body["text"], str):
            return {"text": self.answer}
        return [{"meta_info": {"input_token_logprobs": [
            [None, 1, None], [-1.0 if text.endswith(" " + self.likely) else -2.0, 2, None]]}} for text in body["text"]]


class TaskTest(unittest.TestCase):
    def test_there_are_two_hundred_and_none_twice(self):
        self.assertEqual(len(TASKS), 200)
        self.assertEqual(len({task["prompt"] for task in TASKS}), 200)

    def test_choices_have_four_options_and_one_answer(self):
        choices = [task for task in TASKS if task["kind"] == "choice"]
        self.assertEqual(len(choices), 120)
        for task in choices:
            self.assertEqual(len(set(task["options"])), 4, task)
            self.assertIn(task["answer"], range(4))
        for place in range(4):  # no place of the answer is a good guess
            self.assertLess(sum(task["answer"] == place for task in choices), 45)

    def test_sums_are_right(self):
        sums = [task for task in TASKS if task["kind"] == "arithmetic"]
        self.assertEqual(len(sums), 80)
        operations = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
        for task in sums:
            a, operation, b, equals = task["prompt"].split()
            self.assertEqual(equals, "=")
            self.assertEqual(task["answer"], str(operations[operation](int(a), int(b))))
            self.assertNotIn(f"{a} {operation} {b} =", gate.EXAMPLES)


class ScoreTest(unittest.TestCase):
    task = {"kind": "choice", "prompt": "Ice is frozen", "options": ["milk", "water", "oil", "air"], "answer": 1}

    def test_the_likeliest_option_counts(self):
        self.assertTrue(gate.choose(FakeServer(likely="water"), self.task))
        self.assertFalse(gate.choose(FakeServer(likely="air"), self.task))

    def test_a_sum_is_the_first_number(self):
        task = {"prompt": "1 + 6 =", "answer": "7"}
        self.assertTrue(gate.calculate(FakeServer(answer=" 7"), task))
        self.assertTrue(gate.calculate(FakeServer(answer="7 apples"), task))
        for wrong in ("", " 77", "-7", "seven", "it is 7"):
            self.assertFalse(gate.calculate(FakeServer(answer=wrong), task), wrong)

    def test_a_missed_limit_is_named(self):
        limits = {"choice": 100, "arithmetic": 20, "ppl": 30.0, "kl": 0.2}
        good = {"choice": 100, "arithmetic": 20, "ppl": 30.0, "kl": 0.2}
        self.assertEqual(gate.judge("x", good, limits), [])
        for key, value in (("choice", 99), ("arithmetic", 19), ("ppl", 30.1), ("kl", 0.21), ("kl", float("nan"))):
            failures = gate.judge("x", {**good, key: value}, limits)
            self.assertEqual(len(failures), 1, key)
            self.assertIn(f"x: {key} is", failures[0])


if __name__ == "__main__":
    unittest.main()
