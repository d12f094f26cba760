//! The real program as a user and a script see it: whole outputs, exit codes, a terminal.
//!
//! Bottles run on the fake backend, which runs the real keeper, bundle and guest without isolation, and only
//! programs built into `bottle` itself. Every test has a home of its own; what differs from run to run is
//! scrubbed before an output is compared with the one under `snapshots/`.
//!
//! - `engines`, `images`: the same on Docker, with engines and images that are not as they should be
//! - `image_files`: images that lie on this machine, on disks that are full or unusual
//! - `clones`: snapshots on disks that share the blocks of files, and on one that does not
//! - `disks`: homes on disks that are not as a local one
//! - `homes`, `names`, `clock`: homes, names and times that are not the usual ones
//! - `exit_codes`: each of them
//! - `streams`: nobody to ask, nobody who reads
//! - `races`: two commands at one moment
//! - `deploy_keys`: keys that a forge has for as long as a bottle lives
//! - `host_keys`: hosts of repositories that nobody knows
//! - `secrets`: credentials that cannot be had
//! - `own_rules`: a user's own rules, and what they mark
//! - `usage`, `manifests`, `settings`, `state`: what is refused, and in which words
//! - `looking`: `list`, `info`, `policy check`, `start --dry-run`
//! - `running`: start on pipes, exec, logs, cp, stop
//! - `conversations`: copied out, and gone on with
//! - `freezing`: snapshots made, listed and removed
//! - `resuming`: going on with what was kept or committed
//! - `pulling`: work taken out by git
//! - `newcomer`: a user's first hour, as they see it
//! - `notices`: what a user hears of the proxy beside an agent that has the whole screen
//! - `logs`: the log of a bottle's proxy, and readers that go away
//! - `picking`: what a user is asked who names no agent
//! - `docker`: the same on a bottle in containers, where an engine answers
//! - `endings`: every end of a session, and the terminal as it was
//! - `screens`: what is shown on terminals of every size, and on those that know no colours or letters
//! - `supervising`: what bottles ask, and the answers; `deciding`: the same on a screen of its own
//! - `readme`: README's commands, as they are written
//! - `terminal`: a user at a terminal: questions, detach, attach, resize, and the terminal given back
//! - `waiting`: what is shown of something that takes its time, and what Ctrl-C leaves
//! - `writing`: manifests of one's own, and settings

mod asking;
mod clock;
mod clones;
mod conversations;
mod deciding;
mod deploy_keys;
mod discarding;
mod disks;
mod docker;
mod endings;
mod engines;
mod exit_codes;
mod freezing;
mod home;
mod homes;
mod host_keys;
mod image_files;
mod images;
mod lock_out;
mod logs;
mod looking;
mod manifests;
mod measured;
mod names;
mod newcomer;
mod notices;
mod own_rules;
mod picking;
mod pulling;
mod races;
mod readme;
mod resuming;
mod running;
mod screens;
mod secrets;
mod settings;
mod state;
mod streams;
mod supervising;
mod terminal;
mod usage;
mod waiting;
mod writing;
