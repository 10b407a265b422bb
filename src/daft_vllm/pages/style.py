"""The style of pages: readable on a telephone, and in the dark."""

from __future__ import annotations

STYLE = """
:root { --back: #fff; --text: #1d2329; --soft: #5a6570; --line: #d9dee3; --ours: #1f6fd0; --other: #9aa5b1;
  --track: #f0f2f5; --bad: #b3261e; --good: #1d7a3e; --warn: #8a5a00 }
@media (prefers-color-scheme: dark) { :root { --back: #14181c; --text: #e6e9ec; --soft: #a3adb7; --line: #333b43;
  --ours: #63a7e8; --other: #75808b; --track: #20262c; --bad: #ff8a80; --good: #7ad69a; --warn: #f0c060 } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1.2rem 1rem 3rem;
  background: var(--back); color: var(--text) }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .4rem 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
h3 { font-size: 1rem; margin: 1.4rem 0 .5rem } p { margin: .5rem 0 } .soft { color: var(--soft) }
.scroll { overflow-x: auto; margin: .6rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; min-width: 100% }
td, th { padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
th { font-weight: 600; color: var(--soft); vertical-align: bottom } .text { text-align: left }
.arm { white-space: nowrap } .note { min-width: 13rem }
dl { display: grid; grid-template-columns: 6rem 1fr; gap: .3rem 1rem; margin: .6rem 0 } dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere }
.bar { margin: .55rem 0 } .bar div { display: flex; justify-content: space-between; gap: 1rem; font-size: .9rem }
.rate { white-space: nowrap }
.bar svg { display: block; width: 100%; height: 14px } .track { fill: var(--track) } .fill { fill: var(--other) }
code { font: .92em ui-monospace, monospace }
ul { padding-left: 1.1rem } li { overflow-wrap: anywhere; margin: .2rem 0 }
@media (max-width: 480px) { dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .5rem } }
"""
"""CSS: colours, headings, tables that scroll, lists of names and values, bars."""
