//! What the tests and benches of the whole program share: fake servers, temporary homes, terminals.
//!
//! It owns nothing of the product and links none of it: the program under test is the real `bottle`
//! binary, started as a user would start it.
//!
//! ```text
//! authority ──► server ──► fake_llm   the model's side of a scripted agent, refuses every key but the real one
//!                    ├───► upstream   echo, streams, WebSockets, slow and broken answers
//!                    └───► forge      deploy keys by its API, and git for who holds one
//! sshd ──► forge                      OpenSSH on loopback, and a repository for it
//! home ──► program                    a throw-away BOTTLE_HOME and the real binary run in it
//!   └────► pty                        the same on a terminal, read back as a screen
//! scrub                               what differs from run to run, replaced before a snapshot
//! measure                             rounds taken in turn, medians, ratios, for the benches
//! ordinary                            a suite once more as a user who is not root
//! skip                                a test that cannot run here says so
//! agents                              the real coding agents, fetched once per machine
//! small_root, developer_root          a file system for what runs in images, and what builds in one
//! engine                              a Docker engine that answers, or why there is none
//! own_engine                          one that a test may stop and whose disk it may fill
//! ```
//!
//! Every server listens on loopback only.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agents;
pub mod authority;
pub mod body;
pub mod developer_root;
pub mod engine;
pub mod fake_llm;
pub mod forge;
pub mod home;
pub mod measure;
pub mod ordinary;
pub mod own_engine;
pub mod program;
pub mod pty;
pub mod python;
pub mod scrub;
pub mod server;
pub mod skip;
pub mod small_root;
pub mod sshd;
pub mod upstream;
