//! The rules: the floor, which denies in each mode, and the kinds of commands for which the modes ask the user.

mod asks;
mod downloads;
mod files;
pub(crate) mod git;
mod system;

use std::fmt;

pub(crate) use downloads::{downloaded, is_downloader};
pub(crate) use files::file;

use crate::call::Call;

macro_rules! rules {
    ($($(#[doc = $doc:literal])* $variant:ident $id:literal $is_floor:literal $says:literal,)*) => {
        /// A rule of the policy. The name of a rule is stable, because approvals in the settings use the name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rule {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Rule {
            /// All rules. The rules of the floor come first.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name of the rule in settings and output.
            #[must_use]
            pub fn id(self) -> &'static str {
                match self { $(Self::$variant => $id),* }
            }

            /// Whether the rule belongs to the floor, which denies in each mode. No approval changes the denial.
            #[must_use]
            pub fn is_floor(self) -> bool {
                match self { $(Self::$variant => $is_floor),* }
            }

            /// A noun phrase for users that describes what the rule finds.
            #[must_use]
            pub fn says(self) -> &'static str {
                match self { $(Self::$variant => $says),* }
            }
        }
    };
}

rules! {
    /// Deletes a system directory, a home directory, or a directory above the starting directory.
    DeleteRoot "delete-root" true "the deletion of a system directory, a home directory or what is above the workspace",
    /// Changes the permissions or the owner of a system directory or a home directory.
    OpenPermissions "open-permissions" true "new permissions or owners of a system directory or a home directory",
    /// Writes to a disk or another device.
    WriteDevice "write-device" true "a write to a device",
    /// Formats, partitions or wipes a disk.
    FormatDisk "format-disk" true "the formatting, partitioning or wiping of a disk",
    /// Writes a file of the system.
    WriteSystemFile "write-system-file" true "a write to a file of the system",
    /// Reads or writes a file with credentials.
    Credentials "credentials" true "an access to a file with credentials",
    /// Stops or restarts the machine.
    PowerOff "power-off" true "the end or restart of the machine",
    /// Ends every process.
    KillEverything "kill-everything" true "the end of each process",
    /// Starts processes endlessly.
    ForkBomb "fork-bomb" true "processes that start without an end",
    /// Runs as another user.
    Sudo "sudo" true "privileges of another user",
    /// Runs code that the command line downloads.
    DownloadToShell "download-to-shell" true "the execution of what was just downloaded",
    /// Runs text that is decoded or scrambled on the command line.
    HiddenCode "hidden-code" true "the execution of decoded text",
    /// Rewrites or deletes history on a server.
    GitForcePush "git-force-push" true "a push that overwrites or deletes branches of a server",
    /// The command line cannot be parsed.
    Unreadable "unreadable" false "a command line that cannot be read",
    /// Deletes a directory tree.
    DeleteTree "delete-tree" false "the deletion of a directory with everything in it",
    /// Deletes files.
    DeleteFiles "delete-files" false "the deletion of files",
    /// Deletes data of a database.
    DeleteData "delete-data" false "the deletion of data of a database",
    /// Discards changes that are in no commit.
    DiscardChanges "discard-changes" false "the loss of changes that are in no commit",
    /// Changes permissions for everyone, or owners in a whole tree.
    ChangePermissions "change-permissions" false "permissions for all users, or owners of a whole tree",
    /// Ends processes.
    KillProcesses "kill-processes" false "the end of processes",
    /// Stops services of the system.
    StopService "stop-service" false "the end of a service",
    /// Runs code that is on the command line.
    RunCode "run-code" false "code on the command line",
    /// Runs a command on another machine.
    RemoteShell "remote-shell" false "a command on another machine",
    /// Publishes work outside of the machine.
    Publish "publish" false "work that leaves the machine",
    /// Writes a file.
    WriteFile "write-file" false "a write to a file",
    /// Changes a file through a tool.
    ChangeFile "change-file" false "a change of a file by a tool, in the mode baby-sitter",
    /// Runs any other command that was not proved to only read.
    Command "command" false "a command that was not proved to only read",
}

impl Rule {
    /// The rule with this name.
    #[must_use]
    pub fn named(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.id() == id)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.id())
    }
}

/// What a rule found: the rule, and why it applies.
pub(crate) type Found = (Rule, String);

/// Applies all rules to one command. The findings of the floor come first.
pub(crate) fn check(call: &Call<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for rules in [files::check, system::check, downloads::check, git::check] {
        found.extend(rules(call));
    }
    if found.is_empty() {
        found.extend(asks::check(call));
    }
    found
}
