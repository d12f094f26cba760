//! Real coding agents, unmodified, in real bottles, against the fake model: on the Linux backend, and where an
//! engine answers in containers.
//!
//! The agent has a placeholder, the model accepts one real key only, and only the proxy connects the two. So a
//! script that completes tests the whole path: the agent's program found and mounted, names resolved, TLS
//! intercepted and trusted, the request decided, the key inserted, the response (streamed or not) returned. Tests
//! check effects only: existing files, received requests, and that the key is nowhere in the bottle.
//!
//! mini and pi run as a command in every test run, pi by its template too. Claude Code and
//! codex are large: their tests are named `real_…` and ignored by default, as are all agents in their
//! images: `cargo test --test agents -- --ignored real_`.
//!
//! `packages` has no agent in it, but what all of them do: pip, npm and cargo against this machine's registries.
//!
//! Each command uses both paths to the proxy: the proxy variables, and without them the transparent proxy through
//! the bottle's resolver.
#![allow(clippy::unwrap_used, missing_docs)]

mod asking;
mod claude;
mod codex;
mod docker;
mod mini;
mod packages;
mod pi;
mod pushing;
mod scene;
mod terminal;
