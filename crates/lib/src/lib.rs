//! The operations that all interfaces ("faces") of the program call: the command line, the dashboards, MCP and the
//! calls of an agent.
//!
//! ```text
//! connect    the connection to a bottle's keeper        failure    why an operation failed
//! bottle     a bottle, and what a program does with it  record     what the record of a bottle says
//! bottles    all bottles, and what each does            environments  the bottles of tasks
//! launch     the start of a bottle, the resume, the fork
//! export     a bottle as an archive                     import     the import of an archive
//! stop       the end of a bottle                        discard    the deletion of a bottle that ended
//! processes  the processes of a bottle                  services   the services of a bottle
//! snapshots  the snapshots of bottles
//! files      the files of its workspace                 exec       a command that runs in it to its end
//! routes     changes of the routes of a bottle          proposals  pending proposals, and their answers
//! permit     commands that the command policy checks    budget     the budgets of launches and bottles
//! redaction  values of the caller that are replaced in what it reads
//! secrets    the credentials of a running bottle, and new values for them
//! policy     what the egress proxy would allow          learn      routes for denied requests
//! manifests  the manifests of the user                  usage      what the models used
//! report     the documents that faces print as JSON     text       words of messages
//! cleanup    what ended bottles left                    prune      old records, and unused images
//! work       what an agent changed, and how the user takes it over
//! logs       what was logged of a bottle                access_log  a line of the log of the proxy
//! dashboard  what the dashboards show and do
//! notice     what is said beside a result               scanner_rules  the scanner rules of the user
//!
//! saved_routes       the bottle manifest that routes are saved to
//! snapshot_selector  the name of a snapshot: `SLUG` or `SLUG@NAME`
//! save_snapshot      a snapshot that is saved, and its progress
//! fork_point         the snapshot that is copied
//! clip, line_diff    the two ends of a long output, and the changed lines of a text
//! natural            the order of names with numbers
//! lines              a line in the output of a process
//! threads            operations that block their thread
//! ```
//! No function of this crate reads a flag, asks a question, prints or chooses an exit code.
//!
//! # Example
//! The example program gives an agent's bottle a copy of the working directory, runs a command in the bottle, shows a
//! file, and pulls the work:
#![doc = "```no_run"]
#![doc = include_str!("../examples/task.rs")]
#![doc = "```"]

pub mod access_log;
pub mod bottle;
pub mod bottles;
pub mod budget;
pub mod cleanup;
pub mod clip;
pub mod connect;
pub mod dashboard;
pub mod discard;
pub mod environments;
pub mod exec;
pub mod export;
pub mod failure;
pub mod file_lines;
pub mod files;
pub mod fork_point;
pub mod import;
mod input;
pub mod launch;
pub mod learn;
pub mod line_diff;
pub mod lines;
pub mod logs;
pub mod manifests;
pub mod natural;
pub mod notice;
pub mod permit;
pub mod policy;
pub mod processes;
pub mod proposals;
pub mod prune;
pub mod record;
pub mod redaction;
pub mod registry;
pub mod report;
pub mod routes;
pub mod save_snapshot;
pub mod saved_routes;
pub mod scanner_rules;
pub mod secrets;
pub mod services;
pub mod snapshot_selector;
pub mod snapshots;
pub mod stop;
pub mod text;
mod threads;
pub mod usage;
pub mod work;
