#!/usr/bin/env pwsh
# Converts a value by a factor and prints JSON.
[CmdletBinding()]
param(
    [Parameter(Mandatory)] [double] $Value,
    [Parameter(Mandatory)] [double] $Factor
)

[ordered]@{ value = $Value; factor = $Factor; result = [math]::Round($Value * $Factor, 4) } | ConvertTo-Json -Compress
