//! Rules about files: deletion, permissions, devices, files of the system, credentials.

use super::{Found, Rule};
use crate::call::Call;
use crate::escapes;
use crate::path::{Place, matches};
use crate::text::Text;
use crate::wrappers::{Inner, find_directories, unwrap};

/// Commands that do not open the files that their arguments name.
const TALKERS: &[&str] =
    &["echo", "printf", "true", "false", ":", "test", "[", "export", "declare", "local", "alias"];

pub(super) fn check(call: &Call<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    found.extend(deletion(call));
    found.extend(permissions(call));
    if !TALKERS.contains(&call.program) {
        found.extend(writes(call));
    }
    if !TALKERS.contains(&call.program) && !NAMERS.contains(&call.program) {
        found.extend(credentials(call));
    }
    found
}

/// Commands that do not read the content of the files that their arguments name.
const NAMERS: &[&str] = &[
    "[", "[[", "basename", "cd", "dirname", "du", "exa", "eza", "find", "ls", "pushd", "readlink",
    "realpath", "stat", "test", "tree",
];

/// The floor's finding about a file that a command opens.
pub(crate) fn file(place: &Place, writes: bool) -> Option<Found> {
    if is_credential(place.as_str()) {
        let verb = if writes { "writes" } else { "reads" };
        return Some((Rule::Credentials, format!("{verb} credentials: {}", place.as_str())));
    }
    if !writes {
        return None;
    }
    if place.is_device() {
        return Some((Rule::WriteDevice, format!("writes to the device {}", place.as_str())));
    }
    place
        .is_system()
        .then(|| (Rule::WriteSystemFile, format!("writes the file {} of the system", place.as_str())))
}

/// Whether the loss of a path destroys more than the workspace. A path with unknown parts is also protected if it is
/// `/` when these parts are empty.
fn is_protected(call: &Call<'_>, path: &Text) -> bool {
    let emptied = Text::known(&path.when_empty());
    let is_root_when_empty = !path.is_known() && !emptied.value.is_empty() && call.place(&emptied).is_root();
    is_root_when_empty || call.place(path).is_protected()
}

fn deletion(call: &Call<'_>) -> Option<Found> {
    let says = |path: &Text| Some((Rule::DeleteRoot, format!("deletes {}", call.place(path).as_str())));
    let recurses = call.has(&['r', 'R'], &["recursive"]) || call.scope.descends;
    let is_unknown = call.argv[0].is_unknown();
    match call.program {
        "rm" | "srm" | "shred" | "rmdir" | "del" | "trash" | "unlink" | "rimraf" => {
            let path = call.operands().find(|path| {
                let place = call.place(path);
                if recurses || call.program == "rimraf" {
                    is_protected(call, path)
                } else {
                    place.is_system()
                }
            })?;
            says(path)
        }
        // A program whose name is unknown may be `rm`.
        _ if is_unknown && recurses => says(call.operands().find(|path| is_protected(call, path))?),
        "find" => {
            let deletes = call.arguments().iter().any(|word| word.value == "-delete");
            let directories = find_directories(call);
            let directory = directories.iter().find(|directory| deletes && is_protected(call, directory))?;
            says(directory)
        }
        "rsync" if call.arguments().iter().any(|word| word.value.starts_with("--del")) => {
            says(call.operands().last().filter(|path| is_protected(call, path))?)
        }
        "mv" => {
            let operands: Vec<&Text> = call.operands().collect();
            let (_, moved) = operands.split_last()?;
            says(moved.iter().find(|path| is_protected(call, path))?)
        }
        "git" if call.operands().any(|word| word.value == "clean") => {
            let at = call.arguments().iter().position(|word| word.value == "-C");
            let directory = at.and_then(|at| call.arguments().get(at + 1)).cloned();
            let directory = call.place(&directory.unwrap_or_else(|| Text::known(".")));
            directory
                .is_protected()
                .then(|| (Rule::DeleteRoot, format!("deletes what is in {}", directory.as_str())))
        }
        _ => None,
    }
}

fn permissions(call: &Call<'_>) -> Option<Found> {
    if !matches!(call.program, "chmod" | "chown" | "chgrp" | "chattr" | "setfacl") {
        return None;
    }
    let path = call.operands().skip(1).find(|path| is_protected(call, path))?;
    Some((Rule::OpenPermissions, format!("changes the permissions of {}", call.place(path).as_str())))
}

/// The finding about files that a command writes because of its arguments.
fn writes(call: &Call<'_>) -> Option<Found> {
    let operands: Vec<&Text> = call.operands().collect();
    let value = |name: &str| call.arguments().iter().find_map(|word| word.after(name));
    let next = |flags: &[&str]| {
        let index = call.arguments().iter().position(|word| flags.contains(&word.value.as_str()))?;
        call.arguments().get(index + 1).cloned()
    };
    let mut written: Vec<Text> = match call.program {
        "tee" | "sponge" | "touch" | "truncate" | "mkdir" | "mknod" | "mkfifo" | "ed" | "ex" | "vi"
        | "vim" | "nano" | "fallocate" | "rm" | "unlink" | "shred" | "rmdir" => {
            operands.into_iter().cloned().collect()
        }
        "dd" => value("of").into_iter().collect(),
        "cp" | "mv" | "ln" | "install" | "rsync" | "scp" => next(&["-t"])
            .or_else(|| value("--target-directory"))
            .or_else(|| operands.last().copied().cloned())
            .into_iter()
            .collect(),
        "sed" | "perl" | "ruby" if call.has(&['i'], &["in-place"]) => operands.into_iter().cloned().collect(),
        "chmod" | "chown" | "chgrp" | "chattr" | "setfacl" => operands.into_iter().skip(1).cloned().collect(),
        "sort" | "gcc" | "cc" | "clang" | "curl" => {
            next(&["-o", "--output"]).or_else(|| value("--output")).into_iter().collect()
        }
        "wget" => next(&["-O"]).or_else(|| value("--output-document")).into_iter().collect(),
        "tar" | "unzip" => next(&["-C", "-d"]).or_else(|| value("--directory")).into_iter().collect(),
        _ => Vec::new(),
    };
    written.extend(escapes::written(call));
    written
        .iter()
        .find_map(|path| file(&call.place(path), true).filter(|(rule, _)| *rule != Rule::Credentials))
}

/// The finding about credentials that an argument names.
fn credentials(call: &Call<'_>) -> Option<Found> {
    // A message, such as that of `git commit -m`, is not a path.
    let is_message = |index: usize| {
        index > 0
            && matches!(
                call.argv[index].value.as_str(),
                "-m" | "--message" | "-F" | "--grep" | "-e" | "--regexp"
            )
    };
    let skipped =
        usize::from(matches!(call.program, "grep" | "egrep" | "fgrep" | "rg" | "sed" | "awk" | "jq"));
    let mut operands_left = skipped;
    let inner = unwrap(call).inner;
    for (index, word) in call.argv.iter().enumerate().skip(1) {
        if is_message(index - 1) || inner.iter().any(|inner| is_inner(inner, &call.argv[index..])) {
            continue;
        }
        if operands_left > 0 && !word.value.starts_with('-') {
            operands_left -= 1;
            continue;
        }
        // An argument can contain a path, as in `if=FILE`, `-d@FILE`, `--data=@FILE`, `HOST:FILE` and `SOURCE:TARGET`.
        for part in word.value.split(['=', '@', ':', ',']) {
            let place = Place::of(part, &call.scope.directory);
            // A part without the characters of a path may not be a path, so it must be one of the names in
            // [`CREDENTIALS`].
            let is_path = part.contains(['/', '.', '~']);
            if is_path && is_credential(place.as_str()) || !is_path && is_listed(place.as_str()) {
                return Some((Rule::Credentials, format!("names credentials: {}", place.as_str())));
            }
        }
    }
    None
}

/// Whether the first of these words belongs to an inner command of the call. Inner commands are checked separately.
fn is_inner(inner: &Inner, words: &[Text]) -> bool {
    match inner {
        Inner::Command(command) => (0..command.len()).any(|from| command[from..].starts_with(words)),
        Inner::Script(script, _) => words[0] == *script,
        Inner::Code(_) => false,
    }
}

/// Files with credentials: the last directories of their path, and their name.
const CREDENTIALS: &[(&str, &[&str])] = &[
    ("/etc", &["shadow", "gshadow", "sudoers", "shadow-", "gshadow-", "master.passwd"]),
    (
        ".ssh",
        &[
            "id_rsa",
            "id_dsa",
            "id_ecdsa",
            "id_ed25519",
            "id_ed25519_sk",
            "id_ecdsa_sk",
            "identity",
            "authorized_keys",
        ],
    ),
    (".aws", &["credentials"]),
    (".docker", &["config.json"]),
    (".kube", &["config"]),
    (".config/gh", &["hosts.yml"]),
    (".config/gcloud", &["credentials.db", "application_default_credentials.json"]),
    (".azure", &["accessTokens.json", "msal_token_cache.json"]),
    (".claude", &[".credentials.json"]),
    (".codex", &["auth.json"]),
    (".cargo", &["credentials", "credentials.toml"]),
    ("", &[".netrc", "_netrc", ".git-credentials", ".pgpass", ".pypirc", ".vault-token"]),
];

/// Directories that contain only credentials. The rule applies to such a directory as a whole, and to each file in the
/// directory that is not in [`PUBLIC`].
const VAULTS: &[&str] = &[".ssh", ".aws", ".gnupg", ".password-store"];
const PUBLIC: &[&str] = &["known_hosts", "known_hosts.old", "config"];

fn is_credential(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let vault = parts.iter().position(|part| VAULTS.iter().any(|vault| is_match(part, vault)));
    let is_private = vault.is_some_and(|at| match parts.get(at + 1) {
        // The path is the directory itself.
        None => parts.len() > 1,
        Some(name) => !PUBLIC.contains(name) && !name.ends_with(".pub"),
    });
    let is_sudoers = path.starts_with("/etc/sudoers.d");
    let is_environment =
        path.starts_with("/proc/") && parts.last().is_some_and(|name| matches(name, "environ"));
    is_listed(path) || is_private || is_sudoers || is_environment
}

/// Whether a path has the directory and one of the names of an entry of [`CREDENTIALS`].
fn is_listed(path: &str) -> bool {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    CREDENTIALS.iter().any(|(in_directory, names)| match in_directory.is_empty() {
        true => names.iter().any(|listed| is_match(name, listed)),
        // In a directory of credentials, a pattern that matches everything names the credentials too.
        false => ends_with(directory, in_directory) && names.iter().any(|listed| matches(name, listed)),
    })
}

/// Whether a file name is `listed`, or a pattern matches `listed`. A pattern with few letters is not considered,
/// because it matches too many names.
fn is_match(pattern: &str, listed: &str) -> bool {
    let letters = pattern.chars().filter(char::is_ascii_alphanumeric).count();
    let is_specific = !pattern.contains(['*', '?', '[']) || letters > 3 || 2 * letters >= listed.len();
    is_specific && matches(pattern, listed)
}

/// Whether the last directories of a path are `parts`, or patterns that match `parts`. `parts` may begin at the root.
fn ends_with(directory: &str, parts: &str) -> bool {
    let count = parts.split('/').count();
    let directories: Vec<&str> = directory.split('/').collect();
    let is_whole = directories.len() == count;
    directories.len() >= count
        && (is_whole || !parts.starts_with('/'))
        && directories[directories.len() - count..]
            .iter()
            .zip(parts.split('/'))
            .all(|(pattern, part)| matches(pattern, part))
}
