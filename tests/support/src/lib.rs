//! Test doubles and helpers for the tests and benchmarks of the whole program: fake servers, temporary homes,
//! terminals.
//!
//! This crate does not link any code of the product. The program under test is the real `bottle` binary,
//! started as a user would start it.
//!
//! ```text
//! authority ──► server ──► fake_llm   the model API for a scripted agent; accepts one key only
//!                    ├───► upstream   echo, streams, WebSockets, slow and broken answers
//!                    └───► forge      deploy keys API, and git over ssh with them
//! sshd ──► forge                      OpenSSH on loopback with a repository
//! home ──► program                    a temporary BOTTLE_HOME and the real binary run in it
//!   └────► pty                        the same on a pseudo-terminal, read back as a screen
//! scrub                               replaces values that differ between runs, for snapshots
//! measure                             interleaved rounds, medians, ratios, for the benches
//! ordinary                            runs a suite again as a non-root user
//! skip                                reports a skipped test
//! agents                              the real coding agents, downloaded once per machine
//! repository_kinds                    kinds of repositories, and how an agent's work comes out of them
//! small_root, developer_root          root file systems for images, without and with build tools
//! registry                            an image registry on loopback, with or without a login
//! browser                             a headless Chromium
//! engine                              the Docker engine of this machine, or why there is none
//! killed_on_drop                      a process that ends with the value
//! own_engine                          a private engine that a test may stop and whose disk it may fill
//! ```
//!
//! Servers listen on loopback, unless a test asks for another address of this machine.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agents;
pub mod authority;
pub mod body;
pub mod browser;
pub mod developer_root;
pub mod engine;
pub mod fake_llm;
pub mod forge;
pub mod home;
pub mod killed_on_drop;
pub mod mcp_server;
pub mod measure;
pub mod node;
pub mod ordinary;
pub mod own_engine;
pub mod program;
pub mod pty;
pub mod python;
pub mod registry;
pub mod repository_kinds;
pub mod script_file;
pub mod scrub;
pub mod server;
pub mod skip;
pub mod small_root;
pub mod sshd;
pub mod upstream;
pub mod websocket;
