//! Tests the real program as users and scripts see it: complete outputs, exit codes, a terminal.
//!
//! Most bottles run on the fake backend, which runs the real keeper, bundle and guest without isolation, and
//! only programs built into `bottle` itself. Every test has a separate home. Values that differ between runs
//! are replaced before an output is compared with a snapshot under `snapshots/`.
//!
//! - `activity`: what an agent does, and the size of its bottle, in `list`
//! - `logs_rendered`: `logs` of agents that move the cursor
//! - `given_files`: only the agent's work comes out of a bottle, as git would commit it
//! - `git_directory`: directories whose `.git` names a git directory elsewhere
//! - `git_shapes`: repositories with a layout or settings that are valid only on this machine
//! - `whole_repository`: the repository that contains the working directory
//! - `replaced_credentials`: new values for the credentials of a running bottle
//! - `redaction`: secrets in the results of `bottle mcp`
//! - `several_directories`: bottles with copies of several directories
//! - `bot_bottle`: manifests and variables of bot-bottle
//! - `coming_from`: places of hermes-agent that are no backends
//! - `other_engines`: bottles on another engine than the selected one
//! - `engines`, `images`: container engines and images with problems, on Docker
//! - `image_files`: local images, on disks that are full or unusual
//! - `clones`: snapshots on file systems with and without shared blocks
//! - `disks`: homes on unusual disks
//! - `hostile_directories`: copied directories whose files take up memory or time
//! - `homes`, `names`, `clock`: unusual homes, names and times
//! - `exec`: `exec` with a time limit and with a result
//! - `exit_codes`: every documented exit code
//! - `streams`: missing terminals and readers, and outputs that cannot be written
//! - `races`: concurrent commands
//! - `deploy_keys`: deploy keys at a forge
//! - `host_keys`: repositories whose host has no known key
//! - `secrets`: missing credentials
//! - `scanner_rules`: the user's own scanner rules and sensitive variables
//! - `usage`, `manifests`, `settings`, `state`: input that is refused, and the messages
//! - `library`: the example of the library
//! - `list`: `list`, `info`, `policy check`, `start --dry-run`
//! - `start`: start on pipes, exec, logs, cp, stop
//! - `conversations`: exported conversations, and their continuation
//! - `forge_tools`: the command-line programs of forges, in a bottle with a gated repository
//! - `export`: bottles exported and imported
//! - `snapshot`: snapshots saved, listed and removed
//! - `resume`: kept and committed bottles started again
//! - `private_files`: the modes of files, whatever the umask is
//! - `processes`: `process`, `ps` and `shell`
//! - `services`: programs that must be ready before the agent starts
//! - `fs`: files of a workspace
//! - `guest_tools`: the behaviours of tools that drive a machine, as tables
//! - `pull`: `pull` and `diff` · `submodules`: a pull from submodules
//! - `removal`: the removal of an ended bottle's files
//! - `shared_objects`: copied repositories that share their objects with the user's repositories
//! - `commit_author`: the author of an agent's commits
//! - `kept`: commands on the files of ended bottles
//! - `newcomer`: a user's first session, as they see it
//! - `notices`: the proxy's denials while a full-screen agent draws
//! - `logs`: the access log of a bottle's proxy, and readers that close their pipe
//! - `start_questions`: the questions of `start` without an agent
//! - `docker`: commands on a bottle in containers, if an engine is available
//! - `endings`: every way in which a session ends restores the terminal
//! - `screens`: output on terminals of every size and kind
//! - `asking`: proposals by an agent in a bottle, and what an approval allows
//! - `rules`: the command policy
//! - `audit`: the audit log as a user sees it
//! - `supervise`, `supervise_answers`: proposals and answers, with commands and on the full screen
//! - `dashboard`, `web_dashboard`: `bottle dashboard` on a terminal and in a browser
//! - `lock_out`: a bottle is locked because its agent guesses a credential
//! - `mcp`: MCP clients that drive bottles
//! - `children`: agents that start bottles
//! - `probe`: the isolation probe
//! - `discard`: `bottle discard`
//! - `readme`: the commands of the README, as written
//! - `terminal`: a user at a terminal: questions, detach, attach, resize, restore
//! - `progress`: progress of long operations, and what remains after Ctrl-C
//! - `edit`: manifests that the user writes or edits, and settings

mod activity;
mod apply;
mod asking;
mod audit;
mod bot_bottle;
mod budgets;
mod children;
mod clock;
mod clones;
mod coming_from;
mod commit_author;
mod conversations;
mod dashboard;
mod deploy_keys;
mod discard;
mod disks;
mod docker;
mod edit;
mod ending_reasons;
mod endings;
mod engine_kinds;
mod engines;
mod environments;
mod exec;
mod exit_codes;
mod export;
mod forge_tools;
mod fork;
mod fs;
mod git_directory;
mod git_shapes;
mod given_files;
mod guest_tools;
mod home;
mod homes;
mod host_keys;
mod hostile_directories;
mod image_files;
mod images;
mod kept;
mod library;
mod list;
mod live;
mod live_docker;
mod lock_out;
mod logs;
mod logs_rendered;
mod manifests;
mod mcp;
mod model_usage;
mod names;
mod newcomer;
mod notices;
mod other_engines;
mod owned;
mod private_files;
mod probe;
mod processes;
mod progress;
mod prune;
mod pull;
mod races;
mod readme;
mod redaction;
mod removal;
mod replaced_credentials;
mod repository_kinds;
mod reset;
mod resume;
mod routes;
mod rules;
mod scanner_rules;
mod screens;
mod secrets;
mod services;
mod settings;
mod several_directories;
mod shared_objects;
mod snapshot;
mod start;
mod start_questions;
mod state;
mod streams;
mod submodules;
mod supervise;
mod supervise_answers;
mod terminal;
mod usage;
mod web_dashboard;
mod whole_repository;
mod without_repository;
