//! Tests real, unmodified coding agents in real bottles against the fake model: on the Linux backend, and in
//! containers if an engine is available.
//!
//! The agent has a placeholder, the model accepts only one real key, and only the proxy inserts that key. A script that
//! completes therefore tests the complete path: the bottle finds and mounts the agent's program, resolves names,
//! intercepts TLS with a trusted certificate, decides on the request, inserts the key, and returns the response (as a
//! stream or not). The tests check only effects: existing files, received requests, and the absence of the key in the
//! bottle.
//!
//! mini-swe-agent and pi are tested in every test run with the template `command`, and pi with its own
//! template too. Claude Code and codex are large, so their tests are named `real_…` and ignored by default.
//! The same applies to all tests of agents in their images. Run them with
//! `cargo test --test agents -- --ignored real_`.
//!
//! `working` tests that the user can take the work of each agent out of its bottle.
//!
//! `driving` tests agents on the host, which drive bottles with `bottle mcp`. `mcp_clients` tests other clients of
//! `bottle mcp`.
//!
//! `packages` tests, without an agent, what all agents do: use pip, npm and cargo with this machine's registries.
//! `java` tests Java with a fake site.
//!
//! Agents are tested on both paths to the proxy: with the proxy variables, and without them through the
//! transparent proxy and the bottle's resolver.
#![allow(clippy::unwrap_used, missing_docs)]

mod asking;
mod budgets;
mod claude;
mod codex;
mod docker;
mod driving;
mod java;
mod mcp_clients;
mod mini;
mod moving;
mod packages;
mod pi;
mod pushing;
mod scene;
mod terminal;
mod working;
