//! The kinds of commands for which the modes ask the user. Each kind has its own rule, so that an approval of one kind
//! does not approve another kind.

use super::git::subcommand;
use super::{Found, Rule};
use crate::call::Call;

pub(super) fn check(call: &Call<'_>) -> Option<Found> {
    let found = |rule: Rule, why: &str| Some((rule, why.to_owned()));
    let first = call.operands().next().map_or("", |text| text.value.as_str());
    match call.program {
        "rm" if call.has(&['r', 'R'], &["recursive"]) => {
            found(Rule::DeleteTree, "deletes a directory with everything in it")
        }
        "rm" | "unlink" | "shred" | "rmdir" | "truncate" => found(Rule::DeleteFiles, "deletes files"),
        "find" if call.arguments().iter().any(|word| word.value == "-delete") => {
            found(Rule::DeleteFiles, "deletes the files that it finds")
        }
        "chmod" if call.operands().next().is_some_and(|mode| opens_to_all(&mode.value)) => {
            found(Rule::ChangePermissions, "lets all users write")
        }
        "chown" | "chgrp" if call.has(&['R'], &["recursive"]) => {
            found(Rule::ChangePermissions, "changes the owners of a whole tree")
        }
        "kill" | "pkill" | "killall" | "xkill" if !call.has(&['l', 'L'], &["list"]) => {
            found(Rule::KillProcesses, "ends processes")
        }
        "systemctl" | "service" | "launchctl" if stops_service(call) => {
            found(Rule::StopService, "stops a service")
        }
        "psql" | "mysql" | "mariadb" | "sqlite3" | "sqlite" | "clickhouse-client" | "duckdb"
            if loses_data(call) =>
        {
            found(Rule::DeleteData, "deletes data of a database")
        }
        "dropdb" => found(Rule::DeleteData, "deletes a database"),
        "git" => git(call),
        "npm" | "pnpm" | "yarn" | "cargo" | "twine" | "gem" | "poetry" | "uv" | "hatch" | "flit"
            if matches!(first, "publish" | "upload" | "push" | "yank" | "unpublish") =>
        {
            found(Rule::Publish, "publishes a package")
        }
        "docker" | "podman" if first == "push" => found(Rule::Publish, "publishes an image"),
        "gh" | "glab"
            if call.operands().nth(1).is_some_and(|word| word.value == "create" || word.value == "merge") =>
        {
            found(Rule::Publish, "publishes work")
        }
        _ => None,
    }
}

fn git(call: &Call<'_>) -> Option<Found> {
    let words: Vec<&str> = subcommand(call).iter().map(|word| word.value.as_str()).collect();
    let has = |flags: &[&str]| words.iter().any(|word| flags.contains(word));
    let rule = match *words.first()? {
        "push" | "send-email" => Rule::Publish,
        "reset" if has(&["--hard", "--merge"]) => Rule::DiscardChanges,
        "clean" | "restore" => Rule::DiscardChanges,
        "checkout" if has(&["--", ".", "-f", "--force"]) => Rule::DiscardChanges,
        "switch" if has(&["-f", "--force", "--discard-changes"]) => Rule::DiscardChanges,
        "stash" if has(&["drop", "clear"]) => Rule::DiscardChanges,
        "branch" if has(&["-D"]) => Rule::DiscardChanges,
        _ => return None,
    };
    let why = if rule == Rule::Publish {
        "sends commits to a server"
    } else {
        "discards changes that may be in no commit"
    };
    Some((rule, why.to_owned()))
}

/// Whether a mode of `chmod` lets all users write.
fn opens_to_all(mode: &str) -> bool {
    if !mode.is_empty() && mode.bytes().all(|byte| byte.is_ascii_digit()) {
        return mode.bytes().last().is_some_and(|last| matches!(last, b'2' | b'3' | b'6' | b'7'));
    }
    mode.split(',').any(|part| {
        let Some(at) = part.find(['+', '=']) else { return false };
        let (who, what) = part.split_at(at);
        (who.is_empty() || who.contains(['a', 'o'])) && what.contains('w')
    })
}

fn stops_service(call: &Call<'_>) -> bool {
    call.operands().any(|word| {
        matches!(
            word.value.as_str(),
            "stop" | "disable" | "mask" | "kill" | "restart" | "isolate" | "unload" | "bootout"
        )
    })
}

fn loses_data(call: &Call<'_>) -> bool {
    let words = call.argv.iter().map(|word| word.value.as_str());
    let input = call.source.text.iter().map(|text| text.value.as_str());
    words.chain(input).any(|text| {
        let text = text.to_ascii_lowercase();
        let words: Vec<&str> =
            text.split(|at: char| !at.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
        words.windows(2).any(|pair| {
            matches!(pair, ["drop", "table" | "database" | "schema" | "index" | "view"] | ["truncate", _])
                || matches!(pair, ["delete", "from"]) && !words.contains(&"where")
        })
    })
}
