#!/usr/bin/env node
// Converts a value by a factor and prints JSON.
const { parseArgs } = require("node:util");

const { values } = parseArgs({ options: { value: { type: "string" }, factor: { type: "string" } } });
const value = Number(values.value);
const factor = Number(values.factor);
if (!Number.isFinite(value) || !Number.isFinite(factor)) {
  console.error("usage: convert.js --value NUMBER --factor NUMBER");
  process.exit(2);
}

console.log(JSON.stringify({ value, factor, result: Number((value * factor).toFixed(4)) }));
