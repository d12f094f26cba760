//! Real coding agents, unmodified, in real bottles, against the fake model: on the Linux backend, and where an
//! engine answers in containers.
//!
//! The agent holds a placeholder, the model takes one real key only, and nothing but the proxy leads
//! from one to the other. So a script that is played to its end proves the whole way: the agent's
//! program found and mounted, names resolved, TLS opened and trusted, the request decided, the key
//! exchanged, the answer (streamed or not) brought back. Everything is judged by effects: files that
//! exist, requests that arrived, a key that is nowhere.
//!
//! mini and pi are run as a command and asked for on every run, pi by its template too. Claude Code and
//! codex are large: their tests are named `real_…` and ignored unless asked for, as are all agents in their
//! images: `cargo test --test agents -- --ignored real_`.
//!
//! `packages` has no agent in it, but what all of them do: pip, npm and cargo against this machine's registries.
//!
//! Each command goes both ways in: by the proxy variables, and with those unset, where only the
//! bottle's resolver leads to the proxy.
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
