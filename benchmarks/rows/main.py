"""What ``linattn bench`` prints, here on one thread."""

from linattn._cli.bench import ROWS as ROWS
