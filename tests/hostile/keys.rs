//! Cases for each configuration key of git's manual that can name a program, a file or a URL.
//!
//! `git-config-keys.txt` is the output of `git --version` and `git help --config`.

use anyhow::Result;

use crate::Case;
use crate::place::Place;

const KEYS: &str = include_str!("git-config-keys.txt");

/// Keys that gitattributes(5) describes, but that the list does not contain.
const UNLISTED: [&str; 1] = ["filter.<driver>.process"];

/// A key with one of these words, in any case, can name a program, a file or a URL.
const WORDS: [&str; 39] = [
    ".clean",
    ".driver",
    ".guitool",
    ".tool",
    "alias",
    "askpass",
    "attributesfile",
    "browser",
    "ccmd",
    "cmd",
    "command",
    "cookiefile",
    "difffilter",
    "editor",
    "excludesfile",
    "exec",
    "external",
    "file",
    "fsmonitor",
    "gitproxy",
    "headercmd",
    "helper",
    "hook",
    "include",
    "insteadof",
    "pager",
    "partialclone",
    "path",
    "process",
    "program",
    "promisor",
    "proxy",
    "receivepack",
    "smudge",
    "ssh",
    "textconv",
    "uploadpack",
    "url",
    "vcs",
];

/// Keys with these prefixes only change what git prints or permits.
const HARMLESS: [&str; 8] =
    ["advice.", "color.", "column.", "fsck.", "gitcvs.", "gitweb.", "guitool.", "status."];

/// Keys that git uses only under a further condition, each with the name of the condition for [`require`].
const NEEDS: [(&str, &str); 5] = [
    ("core.alternateRefsCommand", "alternates"),
    ("filter.evil.clean", "required"),
    ("remote.evil.vcs", "vcs"),
    ("uploadpack.packObjectsHook", "fetch"),
    ("core.sshCommand", "promisor"),
];

/// Returns the cases: all keys together, and each key alone.
pub(crate) fn cases() -> Vec<Case> {
    let all = Case::new("all-keys", |place: &Place| {
        place.repository("project")?;
        chosen().iter().try_for_each(|key| configure(place, key))
    });
    let one = |key: String| {
        let name = format!("key-{}", plain(&key));
        Case::new(name, move |place: &Place| {
            place.repository("project")?;
            configure(place, &key)
        })
    };
    std::iter::once(all).chain(chosen().into_iter().map(one)).collect()
}

/// The keys that are tested, with `evil` as the name.
fn chosen() -> Vec<String> {
    let keys = KEYS.lines().skip(1).map(str::trim).filter(|key| key.contains('.'));
    keys.filter(|key| is_chosen(key)).chain(UNLISTED).map(filled).collect()
}

fn is_chosen(key: &str) -> bool {
    let without_names = key.split('<').map(|part| part.split_once('>').map_or(part, |(_, rest)| rest));
    let lower = without_names.collect::<String>().to_lowercase();
    !HARMLESS.iter().any(|begin| lower.starts_with(begin)) && WORDS.iter().any(|word| lower.contains(word))
}

/// Replaces each placeholder of a key by a name.
fn filled(key: &str) -> String {
    let (mut filled, mut rest) = (String::new(), key);
    while let Some((before, after)) = rest.split_once('<') {
        let (name, after) = after.split_once('>').unwrap_or((after, ""));
        let value = match name {
            "url" => "https://example.test",
            "base" => "ext::evil ",
            "condition" => "gitdir:/**",
            "format" => "ssh",
            _ => "evil",
        };
        filled.push_str(before);
        filled.push_str(value);
        rest = after;
    }
    filled.push_str(rest);
    match filled.strip_suffix('*') {
        Some("credential.https://example.test.") => "credential.https://example.test.helper".to_owned(),
        Some("http.https://example.test.") => "http.https://example.test.proxy".to_owned(),
        Some(begin) => format!("{begin}status"),
        None => filled,
    }
}

/// Sets the key to a value that runs a program, if git uses the key.
fn configure(place: &Place, key: &str) -> Result<()> {
    let program = place.program(&plain(key))?;
    let lower = key.to_lowercase();
    let value = if lower == "core.hookspath" {
        let hooks = format!("tools/hooks-{}", plain(key));
        for hook in crate::shapes::HOOKS {
            place.link(place.path(&format!("tools/{}", plain(key))), &format!("{hooks}/{hook}"))?;
        }
        place.text(&hooks)
    } else if lower.starts_with("include") {
        let file = format!("tools/{}.config", plain(key));
        place.write(&file, crate::place::entry("core.fsmonitor", &program)?)?;
        place.text(&file)
    } else if lower.starts_with("url.") {
        "/".to_owned()
    } else if lower.ends_with("url") {
        format!("ext::{program}")
    } else if lower.ends_with("promisor") {
        "true".to_owned()
    } else if lower.ends_with("vcs") {
        "evil".to_owned()
    } else if lower.starts_with("alias") || lower.starts_with("credential") {
        format!("!{program}")
    } else {
        program
    };
    place.configure(key, &value)?;
    for (of, need) in NEEDS {
        if of.eq_ignore_ascii_case(key) {
            require(place, need)?;
        }
    }
    Ok(())
}

/// Fulfils the further condition under which git uses a key.
fn require(place: &Place, need: &str) -> Result<()> {
    match need {
        "alternates" => {
            place.repository("other")?;
            place.write(
                "project/.git/objects/info/alternates",
                format!("{}\n", place.text("other/.git/objects")),
            )
        }
        "required" => place.configure("filter.evil.required", "true"),
        "promisor" => {
            place.configure("extensions.partialClone", "evil")?;
            place.configure("remote.evil.url", "ssh://host/path")
        }
        "vcs" => place.configure("remote.evil.url", "evil"),
        _ => Ok(()),
    }
}

/// Converts the key to a file name.
fn plain(key: &str) -> String {
    key.replace(|c: char| !c.is_ascii_alphanumeric(), "-").trim_matches('-').to_owned()
}

#[test]
fn the_keys_that_start_programs_are_among_them() {
    let chosen = chosen();
    for key in [
        "core.sshCommand",
        "core.fsmonitor",
        "core.alternateRefsCommand",
        "core.gitProxy",
        "core.hooksPath",
        "credential.helper",
        "diff.external",
        "diff.evil.textconv",
        "filter.evil.process",
        "gpg.program",
        "gc.recentObjectsHook",
        "include.path",
        "includeIf.gitdir:/**.path",
        "interactive.diffFilter",
        "merge.evil.driver",
        "remote.evil.uploadpack",
        "sequence.editor",
        "uploadpack.packObjectsHook",
        "url.ext::evil .insteadOf",
    ] {
        assert!(chosen.iter().any(|known| known == key), "{key}");
    }
}

/// A newer git can have keys that `git-config-keys.txt` does not contain.
#[test]
fn the_installed_git_has_no_other_key_of_this_kind() {
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).output().expect("git");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let known: Vec<&str> = KEYS.lines().collect();
    let keys = run(&["help", "--config"]);
    let new: Vec<&str> = keys.lines().filter(|key| is_chosen(key) && !known.contains(key)).collect();
    assert!(new.is_empty(), "add these keys of {} to git-config-keys.txt: {new:?}", run(&["--version"]));
}
