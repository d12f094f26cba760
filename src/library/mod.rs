//! What every face of the program calls: the command line, the dashboards, MCP and the calls of an agent.
//!
//! ```text
//! connect    the connection to a bottle's keeper        failure    why an operation failed
//! bottles    all bottles, and what each does            record     what the record of a bottle says
//! launch     the start of a bottle, the resume, the fork
//! import     the import of an archive
//! stop       the end of a bottle                        discard    the deletion of a bottle that ended
//! processes  the processes of a bottle                  snapshots  the snapshots of bottles
//! routes     changes of the routes of a bottle          proposals  pending proposals, and their answers
//! permit     commands that the command policy checks    budget     the budgets of launches and bottles
//! manifests  the manifests of the user                  usage      what the models used
//! report     the documents that faces print as JSON     text       words of messages
//! work       what an agent changed, and how the user takes it over
//! notice     what is said beside a result
//!
//! saved_routes       the bottle manifest that routes are saved to
//! snapshot_selector  the name of a snapshot: `SLUG` or `SLUG@NAME`
//! save_snapshot      a snapshot that is saved, and its progress
//! fork_point         the snapshot that is copied
//! clip, line_diff    the two ends of a long output, and the changed lines of a text
//! natural            the order of names with numbers
//! ```
//! Nothing here reads a flag, asks a question, prints or chooses an exit code.

pub(crate) mod bottles;
pub(crate) mod budget;
pub(crate) mod clip;
pub(crate) mod connect;
pub(crate) mod discard;
pub(crate) mod failure;
pub(crate) mod fork_point;
pub(crate) mod import;
pub(crate) mod launch;
pub(crate) mod line_diff;
pub(crate) mod manifests;
pub(crate) mod natural;
pub(crate) mod notice;
pub(crate) mod permit;
pub(crate) mod processes;
pub(crate) mod proposals;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod routes;
pub(crate) mod save_snapshot;
pub(crate) mod saved_routes;
pub(crate) mod snapshot_selector;
pub(crate) mod snapshots;
pub(crate) mod stop;
pub(crate) mod text;
pub(crate) mod usage;
pub(crate) mod work;
