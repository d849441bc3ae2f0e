"""Grade answers: one JSON object per line in, one out. Ends with the parent process."""

from __future__ import annotations

import contextlib
import json
import sys


def main() -> None:
    """Grade answers until the input ends."""
    from harness_reasoning_gym.puzzles import extract_answer, puzzles

    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # rules may print
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                made = puzzles(*asked["puzzles"])
                entry = made[asked["number"]]
                answer = extract_answer(asked["answer"] or "")
                score = float(made.score_answer(answer=answer, entry=entry))
                shown = "no <answer>" if answer is None else f"answer {answer[:80]!r}"
                grade = {"score": score, "reason": f"{shown}: {score:g}"}
            except Exception as error:
                grade = {"error": f"{type(error).__name__}: {error}"[:300]}
            out.write(json.dumps(grade) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
