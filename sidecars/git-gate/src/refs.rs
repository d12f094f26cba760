//! What may move: the rules over refs. Pure.

use std::collections::HashMap;

use bottle_contract::session::gate::GateRefs;

use crate::names::plain;
use crate::upstream::{Upstream, is_id};

/// More updates than this in one push are no work of an agent.
pub(crate) const MOST_UPDATES: usize = 256;

/// One line of what receive-pack hands its hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Update {
    pub(crate) old: String,
    pub(crate) new: String,
    pub(crate) name: String,
}

impl Update {
    /// Reads `old new name`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(3, ' ');
        let (old, new, name) = (words.next()?, words.next()?, words.next()?);
        (is_id(old) && is_id(new)).then(|| Self {
            old: old.to_owned(),
            new: new.to_owned(),
            name: name.to_owned(),
        })
    }

    pub(crate) fn creates(&self) -> bool {
        is_zero(&self.old)
    }

    pub(crate) fn deletes(&self) -> bool {
        is_zero(&self.new)
    }
}

fn is_zero(id: &str) -> bool {
    id.bytes().all(|byte| byte == b'0')
}

/// Judges one update but for the question whether it moves forward. The error says which rule, and where the
/// user changes it.
pub(crate) fn judge(
    rules: &GateRefs,
    upstream: &Upstream,
    repo: &str,
    update: &Update,
) -> Result<(), String> {
    let name = &update.name;
    let change = |key: &str| format!("the user can change `git-gate.repos.{repo}.refs.{key}` in the bottle");
    if !is_plain(name) {
        return Err(format!("{name:?} is no ref that can be pushed"));
    }
    if name.starts_with("refs/replace/") || name == "HEAD" || !name.starts_with("refs/") {
        return Err(format!("{name} may not be pushed: it changes what others see"));
    }
    if is_taken_for_another(name) && !update.deletes() {
        return Err(format!(
            "{name} may not be pushed: git takes such a name for something else; choose another name"
        ));
    }
    if let Some(target) = upstream.aliases.get(name) {
        return Err(format!("{name} is another name of {target} in the upstream; push that one"));
    }
    if update.deletes() && !rules.delete {
        return Err(format!("{name} may not be deleted; {}", change("delete")));
    }
    if let Some(glob) = rules.deny.iter().find(|glob| matches(glob, name)) {
        return Err(format!("{name} is denied by {glob:?}; {}", change("deny")));
    }
    let is_tag = name.starts_with("refs/tags/");
    if is_tag && !rules.tags {
        return Err(format!("{name}: tags may not be pushed; {}", change("tags")));
    }
    match &rules.allow {
        Some(globs) if is_tag || globs.iter().any(|glob| matches(glob, name)) => Ok(()),
        Some(_) => Err(format!("{name} is not among what may be pushed; {}", change("allow"))),
        None if is_tag || upstream.refs.is_empty() => Ok(()),
        None if !name.starts_with("refs/heads/") => Err(format!("{name} is no branch; {}", change("allow"))),
        None if upstream.default.as_ref() == Some(name) => {
            Err(format!("{name} is the upstream's default branch; push another one, or {}", change("allow")))
        }
        None if upstream.default.is_none() => unsaid(upstream, update, &change("allow")),
        None => Ok(()),
    }
}

/// Judges an update where the upstream does not say which branch is its default one.
fn unsaid(upstream: &Upstream, update: &Update, change: &str) -> Result<(), String> {
    let name = &update.name;
    match (&upstream.head, upstream.refs.get(name)) {
        // A commit, but not of which branch: it may be any that is there.
        (Some(head), Some(at)) if head == at => Err(format!(
            "{name} may be the upstream's default branch, which it does not name: its HEAD is the same commit; push \
             another one, or {change}"
        )),
        // Its HEAD names a branch that is not there: whoever makes that one makes the default branch.
        (None, None) => Err(format!(
            "{name} may become the upstream's default branch: the upstream's HEAD names a branch that is not there, \
             and it does not say which; the user makes that branch or sets HEAD, or {change}"
        )),
        _ => Ok(()),
    }
}

/// Whether git reads a branch or tag of this name as something else where it is given by its short name: as one of
/// its own heads, as a full name, or as a commit.
fn is_taken_for_another(name: &str) -> bool {
    let Some(short) = name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix("refs/tags/")) else {
        return false;
    };
    let upper = short.to_ascii_uppercase();
    let own = upper == "HEAD" || upper == "AUTO_MERGE" || upper.ends_with("_HEAD");
    own && !short.contains('/') || upper.starts_with("REFS/") || is_id(&short.to_ascii_lowercase())
}

/// Refuses to move what may be only another name of a branch that may not be pushed, where the upstream does not
/// say which of its names are: two that are one have the same commit.
pub(crate) fn disguised(
    rules: &GateRefs,
    upstream: &Upstream,
    repo: &str,
    update: &Update,
) -> Result<(), String> {
    let name = &update.name;
    let Some(at) = upstream.refs.get(name).filter(|_| !upstream.tells_aliases) else { return Ok(()) };
    let denied =
        |other: &str| judge(rules, upstream, repo, &Update { name: other.to_owned(), ..update.clone() });
    let mut branches = upstream.refs.iter().filter(|(other, _)| other.starts_with("refs/heads/"));
    match branches.find(|(other, id)| *id == at && *other != name && denied(other).is_err()) {
        Some((other, _)) => Err(format!(
            "{name} may be only another name of {other}, which may not be pushed: they have the same commit, and \
             the upstream speaks an old protocol of git that does not say; push a branch of another name, or the \
             user lets the newer one through (`AcceptEnv GIT_PROTOCOL` in the upstream's sshd_config)"
        )),
        None => Ok(()),
    }
}

/// Refuses a new name that another one differs from by case alone, or by letters that look alike or are not seen, there or
/// in the same push: to some file systems, and to readers, they are one.
pub(crate) fn twins(upstream: &Upstream, updates: &[Update]) -> Result<(), String> {
    let mut there: HashMap<String, &str> =
        upstream.refs.keys().map(|name| (plain(name.as_bytes()), name.as_str())).collect();
    for Update { name, .. } in updates.iter().filter(|update| update.creates() && !update.deletes()) {
        match there.insert(plain(name.as_bytes()), name) {
            Some(twin) if twin != name => {
                return Err(format!(
                    "{name} differs from {twin} by case alone, or looks like it; choose another name"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// What `git check-ref-format` allows, roughly: receive-pack checks too, and this keeps surprises out of
/// command lines and messages.
fn is_plain(name: &str) -> bool {
    name.len() <= 255
        && name.bytes().all(|byte| byte > b' ' && byte != 0x7f && !b"~^:?*[\\".contains(&byte))
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains("//")
        && !name.ends_with(['/', '.'])
        && name.split('/').all(|part| !part.starts_with(['.', '-']) && !part.ends_with(".lock"))
}

/// `*` is any text without a slash, `**` any text, `?` one character.
fn matches(glob: &str, name: &str) -> bool {
    fn go(glob: &[u8], name: &[u8]) -> bool {
        match glob {
            [] => name.is_empty(),
            [b'*', b'*', rest @ ..] => (0..=name.len()).any(|at| go(rest, &name[at..])),
            [b'*', rest @ ..] => {
                let end = name.iter().position(|byte| *byte == b'/').unwrap_or(name.len());
                (0..=end).any(|at| go(rest, &name[at..]))
            }
            [b'?', rest @ ..] => matches!(name, [byte, more @ ..] if *byte != b'/' && go(rest, more)),
            [byte, rest @ ..] => matches!(name, [first, more @ ..] if first == byte && go(rest, more)),
        }
    }
    go(glob.as_bytes(), name.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const OLD: &str = "1111111111111111111111111111111111111111";
    const ZERO: &str = "0000000000000000000000000000000000000000";

    fn listed(refs: &[(&str, &str)]) -> BTreeMap<String, String> {
        refs.iter().map(|(name, id)| ((*name).to_owned(), (*id).to_owned())).collect()
    }

    fn judged(rules: &GateRefs, update: (&str, &str, &str)) -> Result<(), String> {
        let upstream = Upstream {
            default: Some("refs/heads/main".to_owned()),
            refs: listed(&[("refs/heads/main", OLD), ("refs/heads/Topic", OLD)]),
            aliases: [("refs/heads/alias".to_owned(), "refs/heads/main".to_owned())].into(),
            tells_aliases: true,
            ..Upstream::default()
        };
        let update = Update { old: update.0.into(), new: update.1.into(), name: update.2.into() };
        judge(rules, &upstream, "tool", &update).and_then(|()| twins(&upstream, &[update]))
    }

    #[test]
    fn what_may_move() {
        let default = GateRefs::default();
        let wide = GateRefs {
            allow: Some(vec!["refs/heads/**".into(), "refs/notes/*".into()]),
            deny: vec!["refs/heads/release/*".into()],
            force: true,
            delete: true,
            tags: true,
        };
        let none = GateRefs { allow: Some(vec![]), ..GateRefs::default() };
        let one = GateRefs { allow: Some(vec!["refs/heads/feature/*".into()]), ..GateRefs::default() };
        for (rules, old, new, name, part) in [
            (&default, ZERO, OLD, "refs/heads/feature", None),
            (&default, OLD, OLD, "refs/heads/main", Some("default branch")),
            (&default, OLD, ZERO, "refs/heads/feature", Some("refs.delete")),
            (&default, ZERO, OLD, "refs/tags/v1", Some("refs.tags")),
            (&default, ZERO, OLD, "refs/notes/commits", Some("refs.allow")),
            (&default, ZERO, OLD, "refs/replace/1", Some("changes what others see")),
            (&default, OLD, OLD, "refs/heads/alias", Some("another name of refs/heads/main")),
            (&default, ZERO, OLD, "HEAD", Some("changes what others see")),
            (&default, ZERO, OLD, "refs/heads/HEAD", Some("takes such a name for something else")),
            (&default, OLD, OLD, "refs/heads/head", Some("takes such a name for something else")),
            (&default, ZERO, OLD, "refs/heads/FETCH_HEAD", Some("takes such a name for something else")),
            (&default, ZERO, OLD, "refs/heads/refs/heads/main", Some("takes such a name for something else")),
            (&default, ZERO, OLD, &format!("refs/heads/{OLD}"), Some("takes such a name for something else")),
            (&wide, ZERO, OLD, "refs/heads/HEAD", Some("takes such a name for something else")),
            (&wide, ZERO, OLD, "refs/tags/HEAD", Some("takes such a name for something else")),
            (&wide, OLD, ZERO, "refs/heads/HEAD", None),
            (&default, ZERO, OLD, "refs/heads/ahead", None),
            (&default, ZERO, OLD, "refs/heads/fix/HEAD", None),
            (&default, ZERO, OLD, "refs/heads/../x", Some("no ref")),
            (&default, ZERO, OLD, "refs/heads/-x", Some("no ref")),
            (&default, ZERO, OLD, "refs/heads/a\u{1b}[31m", Some("no ref")),
            (&default, ZERO, OLD, "refs/heads/topic", Some("by case alone")),
            (&default, ZERO, OLD, "refs/heads/m\u{430}in", Some("looks like it")),
            (&default, ZERO, OLD, "refs/heads/ma\u{200c}in", Some("looks like it")),
            (&default, ZERO, OLD, "refs/heads/\u{ff4d}ain", Some("looks like it")),
            (&default, ZERO, OLD, "refs/heads/\u{433}\u{43e}\u{434}", None),
            (&default, OLD, OLD, "refs/heads/topic", None),
            (&wide, OLD, OLD, "refs/heads/main", None),
            (&wide, ZERO, OLD, "refs/heads/a/b/c", None),
            (&wide, ZERO, OLD, "refs/notes/commits", None),
            (&wide, ZERO, OLD, "refs/notes/a/b", Some("refs.allow")),
            (&wide, ZERO, OLD, "refs/heads/release/1", Some("refs.deny")),
            (&wide, ZERO, OLD, "refs/tags/v1", None),
            (&wide, OLD, ZERO, "refs/heads/x", None),
            (&wide, ZERO, OLD, "refs/replace/1", Some("changes what others see")),
            (&none, ZERO, OLD, "refs/heads/x", Some("refs.allow")),
            (&one, ZERO, OLD, "refs/heads/feature/x", None),
            (&one, ZERO, OLD, "refs/heads/feature/x/y", Some("refs.allow")),
        ] {
            match (judged(rules, (old, new, name)), part) {
                (Ok(()), None) => {}
                (Err(said), Some(part)) if said.contains(part) => {}
                (said, part) => panic!("{name}: {said:?}, not {part:?}"),
            }
        }
    }

    #[test]
    fn twins_in_one_push() {
        let made = |name: &str| Update { old: ZERO.into(), new: OLD.into(), name: name.into() };
        let upstream = Upstream { refs: listed(&[("refs/heads/main", OLD)]), ..Upstream::default() };
        let judged = |names: [&str; 2]| twins(&upstream, &names.map(made));
        assert_eq!(judged(["refs/heads/a", "refs/heads/b"]), Ok(()));
        for names in [["refs/heads/a", "refs/heads/A"], ["refs/heads/\u{e9}", "refs/heads/\u{c9}"]] {
            assert!(judged(names).is_err_and(|why| why.contains("by case alone")), "{names:?}");
        }
        assert!(judged(["refs/heads/x", "refs/heads/MAIN"]).is_err());
    }

    #[test]
    fn what_may_be_another_name() {
        let other = "2".repeat(40);
        let default = GateRefs::default();
        let fixes = GateRefs { allow: Some(vec!["refs/heads/fix/*".into()]), ..GateRefs::default() };
        let denied = GateRefs { deny: vec!["refs/heads/release".into()], ..GateRefs::default() };
        for (rules, tells, name, part) in [
            (&default, false, "refs/heads/fix/alias", Some("another name of refs/heads/main")),
            (&default, true, "refs/heads/fix/alias", None),
            (&default, false, "refs/heads/fix/own", None),
            (&default, false, "refs/heads/new", None),
            (&fixes, false, "refs/heads/fix/alias", Some("another name of refs/heads/main")),
            (&fixes, false, "refs/heads/fix/own", Some("another name of refs/heads/release")),
            (&denied, false, "refs/heads/fix/own", Some("another name of refs/heads/release")),
        ] {
            let upstream = Upstream {
                default: Some("refs/heads/main".to_owned()),
                refs: listed(&[
                    ("refs/heads/main", OLD),
                    ("refs/heads/fix/alias", OLD),
                    ("refs/heads/fix/own", &other),
                    ("refs/heads/release", &other),
                    ("refs/tags/v1", &other),
                ]),
                tells_aliases: tells,
                ..Upstream::default()
            };
            let update = Update { old: OLD.into(), new: other.clone(), name: name.into() };
            match (disguised(rules, &upstream, "tool", &update), part) {
                (Ok(()), None) => {}
                (Err(said), Some(part)) if said.contains(part) => {}
                (said, part) => panic!("{name}: {said:?}, not {part:?}"),
            }
        }
    }

    #[test]
    fn where_the_default_branch_is_not_said_none_is_made_or_moved_that_may_be_it() {
        let other = "2".repeat(40);
        for (head, name, part) in [
            // A HEAD that names a branch which is not there.
            (None, "refs/heads/main", Some("may become the upstream's default branch")),
            (None, "refs/heads/topic", Some("may become the upstream's default branch")),
            (None, "refs/heads/there", None),
            // One that is a commit and no name, as old servers say it.
            (Some(OLD), "refs/heads/there", Some("may be the upstream's default branch")),
            (Some(OLD), "refs/heads/elsewhere", None),
            (Some(OLD), "refs/heads/topic", None),
        ] {
            let upstream = Upstream {
                head: head.map(str::to_owned),
                refs: listed(&[("refs/heads/there", OLD), ("refs/heads/elsewhere", &other)]),
                ..Upstream::default()
            };
            let update = Update { old: ZERO.into(), new: other.clone(), name: name.into() };
            match (judge(&GateRefs::default(), &upstream, "tool", &update), part) {
                (Ok(()), None) => {}
                (Err(said), Some(part)) if said.contains(part) => {}
                (said, part) => panic!("{head:?} {name}: {said:?}, not {part:?}"),
            }
            let allow = GateRefs { allow: Some(vec!["refs/heads/**".into()]), ..GateRefs::default() };
            assert_eq!(judge(&allow, &upstream, "tool", &update), Ok(()));
        }
    }

    #[test]
    fn the_first_push_may_make_the_default_branch() {
        let upstream = Upstream::default();
        let update = Update { old: ZERO.into(), new: OLD.into(), name: "refs/heads/main".into() };
        assert_eq!(judge(&GateRefs::default(), &upstream, "tool", &update), Ok(()));
    }
}
