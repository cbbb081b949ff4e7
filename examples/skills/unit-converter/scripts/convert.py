#!/usr/bin/env python3
"""Converts a value by a factor and prints JSON."""

import argparse
import json

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--value", type=float, required=True)
parser.add_argument("--factor", type=float, required=True)
options = parser.parse_args()

print(
    json.dumps({"value": options.value, "factor": options.factor, "result": round(options.value * options.factor, 4)})
)
