//! Implements the ref rules. The ref rules decide which ref updates a push may contain. The functions of this module
//! have no side effects.

use std::collections::HashMap;
use std::fmt;

use bottle_protocol::secret_files::normalized;
use bottle_protocol::session::git_gate::GateRefs;

use crate::upstream::{Upstream, is_id};

/// The maximum number of ref updates in one push. A push with more updates is refused.
pub(crate) const MOST_UPDATES: usize = 256;

/// One ref update, as receive-pack passes it to the pre-receive hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Update {
    pub(crate) old: String,
    pub(crate) new: String,
    pub(crate) name: String,
}

impl Update {
    /// Parses a line of the form `old new name`.
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

/// The reason why the gate refuses a ref update. The `Display` text is a part of a sentence for the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefError {
    #[error("{0:?} is not a valid ref name")]
    Invalid(String),
    #[error("{0} may not be pushed: it changes what other clients see")]
    Special(String),
    #[error("{0} may not be pushed: the name is ambiguous to git; choose another name")]
    Ambiguous(String),
    #[error("{name} is an alias of {target} in the upstream; push to {target}")]
    Alias { name: String, target: String },
    #[error(
        "{name} may be an alias of {other}, which may not be pushed: they have the same commit, and the upstream uses \
         an old protocol of git that does not report aliases; push to a new branch, or the user enables the newer \
         protocol (`AcceptEnv GIT_PROTOCOL` in the upstream's sshd_config)"
    )]
    PossibleAlias { name: String, other: String },
    #[error("{name} differs from {other} only by case, or looks like it; choose another name")]
    LookAlike { name: String, other: String },
    #[error("{0} may not be deleted; {1}")]
    Deleted(String, Setting),
    #[error("{name} is denied by {glob:?}; {setting}")]
    Denied { name: String, glob: String, setting: Setting },
    #[error("{0}: tags may not be pushed; {1}")]
    Tag(String, Setting),
    #[error("{0} matches no allowed ref; {1}")]
    NotAllowed(String, Setting),
    #[error("{0} is not a branch; {1}")]
    NotABranch(String, Setting),
    #[error("{0} is the upstream's default branch; push to another branch, or {1}")]
    Default(String, Setting),
    /// The upstream reports only the commit of `HEAD`, so every branch at this commit may be the default branch.
    #[error(
        "{0} may be the upstream's default branch, which it does not name: its HEAD is the same commit; push to another \
         branch, or {1}"
    )]
    PossibleDefault(String, Setting),
    /// The upstream's `HEAD` names an unknown branch that does not exist. A push that creates this branch would create
    /// the default branch.
    #[error(
        "{0} may become the upstream's default branch: the upstream's HEAD names a branch that does not exist, and does \
         not report which; the user creates that branch or sets HEAD, or {1}"
    )]
    FutureDefault(String, Setting),
    #[error(
        "{name} would lose commits that the upstream has; merge or rebase, or the user can allow it with \
         `git-gate.repos.{repo}.refs.force` in the bottle"
    )]
    Force { name: String, repo: String },
}

/// The setting in the bottle manifest that would allow a refused update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    repo: String,
    key: &'static str,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { repo, key } = self;
        write!(f, "the user can change `git-gate.repos.{repo}.refs.{key}` in the bottle")
    }
}

/// Checks one update against the ref rules. The caller checks the fast-forward rule, [`check_alias`] and
/// [`check_lookalikes`] separately.
pub(crate) fn check_update(
    rules: &GateRefs,
    upstream: &Upstream,
    repo: &str,
    update: &Update,
) -> Result<(), RefError> {
    let (name, own) = (&update.name, || update.name.clone());
    let setting = |key| Setting { repo: repo.to_owned(), key };
    if name == "HEAD" || name.starts_with("refs/replace/") {
        return Err(RefError::Special(own()));
    }
    if !is_valid(name) {
        return Err(RefError::Invalid(own()));
    }
    if is_ambiguous(name) && !update.deletes() {
        return Err(RefError::Ambiguous(own()));
    }
    if let Some(target) = upstream.aliases.get(name) {
        return Err(RefError::Alias { name: own(), target: target.clone() });
    }
    if update.deletes() && !rules.delete {
        return Err(RefError::Deleted(own(), setting("delete")));
    }
    if let Some(glob) = rules.deny.iter().find(|glob| is_denied(glob, name)) {
        return Err(RefError::Denied { name: own(), glob: glob.clone(), setting: setting("deny") });
    }
    let is_tag = name.starts_with("refs/tags/");
    if is_tag && !rules.tags {
        return Err(RefError::Tag(own(), setting("tags")));
    }
    let refused = match &rules.allow {
        Some(globs) if is_tag || globs.iter().any(|glob| matches(glob, name)) => return Ok(()),
        Some(_) => RefError::NotAllowed,
        None if is_tag || upstream.refs.is_empty() => return Ok(()),
        None if !name.starts_with("refs/heads/") => RefError::NotABranch,
        None => match (&upstream.default, &upstream.head, upstream.refs.get(name)) {
            (Some(default), ..) if default == name => RefError::Default,
            (None, Some(head), Some(at)) if head == at => RefError::PossibleDefault,
            (None, None, None) => RefError::FutureDefault,
            _ => return Ok(()),
        },
    };
    Err(refused(own(), setting("allow")))
}

/// Returns whether a glob denies a ref name, or another name that some hosts and readers treat as equal. For example, a
/// host with a case-insensitive file system stores `Release` and `release` in the same file.
fn is_denied(glob: &str, name: &str) -> bool {
    let folded = |text: &str| normalized(text.as_bytes());
    matches(glob, name) || matches(&folded(glob), &folded(name))
}

/// Returns whether git resolves the short name of a branch or tag to something else: to a pseudo-ref such as
/// `FETCH_HEAD`, to a full ref name, or to a commit.
fn is_ambiguous(name: &str) -> bool {
    let Some(short) = name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix("refs/tags/")) else {
        return false;
    };
    let upper = short.to_ascii_uppercase();
    let is_pseudo = upper == "HEAD" || upper == "AUTO_MERGE" || upper.ends_with("_HEAD");
    is_pseudo && !short.contains('/') || upper.starts_with("REFS/") || is_id(&short.to_ascii_lowercase())
}

/// Refuses an update of a ref that may be an alias (a symbolic ref) of a denied branch. A ref may be an alias if it has
/// the same commit as the branch. If the upstream reports its aliases, this check is skipped.
pub(crate) fn check_alias(
    rules: &GateRefs,
    upstream: &Upstream,
    repo: &str,
    update: &Update,
) -> Result<(), RefError> {
    let name = &update.name;
    let Some(at) = upstream.refs.get(name).filter(|_| !upstream.reports_aliases) else { return Ok(()) };
    let denied = |other: &str| {
        check_update(rules, upstream, repo, &Update { name: other.to_owned(), ..update.clone() })
    };
    let mut branches = upstream.refs.iter().filter(|(other, _)| other.starts_with("refs/heads/"));
    match branches.find(|(other, id)| *id == at && *other != name && denied(other).is_err()) {
        Some((other, _)) => Err(RefError::PossibleAlias { name: name.clone(), other: other.clone() }),
        None => Ok(()),
    }
}

/// Refuses a new ref name that differs from another ref name only by case, look-alike letters or invisible characters,
/// because some file systems and readers treat both names as equal. The other ref may be in the upstream or in the same
/// push.
pub(crate) fn check_lookalikes(upstream: &Upstream, updates: &[Update]) -> Result<(), RefError> {
    let mut known: HashMap<String, &str> =
        upstream.refs.keys().map(|name| (normalized(name.as_bytes()), name.as_str())).collect();
    for Update { name, .. } in updates.iter().filter(|update| update.creates() && !update.deletes()) {
        match known.insert(normalized(name.as_bytes()), name) {
            Some(other) if other != name => {
                return Err(RefError::LookAlike { name: name.clone(), other: other.to_owned() });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns whether the gate accepts a pushed ref name. The gate is stricter than git, to protect command lines and
/// messages.
fn is_valid(name: &str) -> bool {
    name.len() <= 255 && is_well_formed(name.as_bytes()) && name.split('/').all(|part| !part.starts_with('-'))
}

/// Returns whether git accepts a ref name (`git check-ref-format`, gitrevisions(7)).
pub(crate) fn is_well_formed(name: &[u8]) -> bool {
    let has = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
    let refused = |byte: &u8| *byte <= b' ' || *byte == 0x7f || b"~^:?*[\\".contains(byte);
    name.starts_with(b"refs/")
        && !name.iter().any(refused)
        && !has(b"..")
        && !has(b"@{")
        && !name.ends_with(b".")
        && name
            .split(|byte| *byte == b'/')
            .all(|part| !part.is_empty() && !part.starts_with(b".") && !part.ends_with(b".lock"))
}

/// Returns whether a name matches a glob. `*` matches any text without a slash, `**` matches any text, and `?` matches
/// one character other than a slash.
pub(crate) fn matches(glob: &str, name: &str) -> bool {
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

    fn check(rules: &GateRefs, update: (&str, &str, &str)) -> Result<(), RefError> {
        let upstream = Upstream {
            default: Some("refs/heads/main".to_owned()),
            refs: listed(&[("refs/heads/main", OLD), ("refs/heads/Topic", OLD)]),
            aliases: [("refs/heads/alias".to_owned(), "refs/heads/main".to_owned())].into(),
            reports_aliases: true,
            ..Upstream::default()
        };
        let update = Update { old: update.0.into(), new: update.1.into(), name: update.2.into() };
        check_update(rules, &upstream, "tool", &update).and_then(|()| check_lookalikes(&upstream, &[update]))
    }

    #[test]
    fn applies_the_ref_rules() {
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
            (&default, ZERO, OLD, "refs/replace/1", Some("changes what other clients see")),
            (&default, OLD, OLD, "refs/heads/alias", Some("an alias of refs/heads/main")),
            (&default, ZERO, OLD, "HEAD", Some("changes what other clients see")),
            (&default, ZERO, OLD, "refs/heads/HEAD", Some("ambiguous to git")),
            (&default, OLD, OLD, "refs/heads/head", Some("ambiguous to git")),
            (&default, ZERO, OLD, "refs/heads/FETCH_HEAD", Some("ambiguous to git")),
            (&default, ZERO, OLD, "refs/heads/refs/heads/main", Some("ambiguous to git")),
            (&default, ZERO, OLD, &format!("refs/heads/{OLD}"), Some("ambiguous to git")),
            (&wide, ZERO, OLD, "refs/heads/HEAD", Some("ambiguous to git")),
            (&wide, ZERO, OLD, "refs/tags/HEAD", Some("ambiguous to git")),
            (&wide, OLD, ZERO, "refs/heads/HEAD", None),
            (&default, ZERO, OLD, "refs/heads/ahead", None),
            (&default, ZERO, OLD, "refs/heads/fix/HEAD", None),
            (&default, ZERO, OLD, "refs/heads/../x", Some("not a valid ref name")),
            (&default, ZERO, OLD, "refs/heads/-x", Some("not a valid ref name")),
            (&default, ZERO, OLD, "refs/heads/a\u{1b}[31m", Some("not a valid ref name")),
            (&default, ZERO, OLD, "refs/heads/topic", Some("only by case")),
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
            (&wide, ZERO, OLD, "refs/heads/Release/1", Some("refs.deny")),
            (&wide, ZERO, OLD, "refs/heads/r\u{435}lease/1", Some("refs.deny")),
            (&wide, ZERO, OLD, "refs/heads/releases/1", None),
            (&wide, ZERO, OLD, "refs/tags/v1", None),
            (&wide, OLD, ZERO, "refs/heads/x", None),
            (&wide, ZERO, OLD, "refs/replace/1", Some("changes what other clients see")),
            (&none, ZERO, OLD, "refs/heads/x", Some("refs.allow")),
            (&one, ZERO, OLD, "refs/heads/feature/x", None),
            (&one, ZERO, OLD, "refs/heads/feature/x/y", Some("refs.allow")),
        ] {
            match (check(rules, (old, new, name)), part) {
                (Ok(()), None) => {}
                (Err(result), Some(part)) if result.to_string().contains(part) => {}
                (result, part) => panic!("{name}: {result:?}, not {part:?}"),
            }
        }
    }

    #[test]
    fn refuses_lookalike_names_in_one_push() {
        let create = |name: &str| Update { old: ZERO.into(), new: OLD.into(), name: name.into() };
        let upstream = Upstream { refs: listed(&[("refs/heads/main", OLD)]), ..Upstream::default() };
        let check = |names: [&str; 2]| check_lookalikes(&upstream, &names.map(create));
        assert_eq!(check(["refs/heads/a", "refs/heads/b"]), Ok(()));
        for names in [["refs/heads/a", "refs/heads/A"], ["refs/heads/\u{e9}", "refs/heads/\u{c9}"]] {
            assert!(check(names).is_err_and(|why| why.to_string().contains("only by case")), "{names:?}");
        }
        assert!(check(["refs/heads/x", "refs/heads/MAIN"]).is_err());
    }

    #[test]
    fn refuses_a_possible_alias_of_a_denied_branch() {
        let other = "2".repeat(40);
        let default = GateRefs::default();
        let fixes = GateRefs { allow: Some(vec!["refs/heads/fix/*".into()]), ..GateRefs::default() };
        let denied = GateRefs { deny: vec!["refs/heads/release".into()], ..GateRefs::default() };
        for (rules, reports_aliases, name, part) in [
            (&default, false, "refs/heads/fix/alias", Some("an alias of refs/heads/main")),
            (&default, true, "refs/heads/fix/alias", None),
            (&default, false, "refs/heads/fix/own", None),
            (&default, false, "refs/heads/new", None),
            (&fixes, false, "refs/heads/fix/alias", Some("an alias of refs/heads/main")),
            (&fixes, false, "refs/heads/fix/own", Some("an alias of refs/heads/release")),
            (&denied, false, "refs/heads/fix/own", Some("an alias of refs/heads/release")),
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
                reports_aliases,
                ..Upstream::default()
            };
            let update = Update { old: OLD.into(), new: other.clone(), name: name.into() };
            match (check_alias(rules, &upstream, "tool", &update), part) {
                (Ok(()), None) => {}
                (Err(result), Some(part)) if result.to_string().contains(part) => {}
                (result, part) => panic!("{name}: {result:?}, not {part:?}"),
            }
        }
    }

    #[test]
    fn refuses_a_possible_default_branch_if_the_upstream_names_none() {
        let other = "2".repeat(40);
        for (head, name, part) in [
            // `HEAD` names a branch that does not exist.
            (None, "refs/heads/main", Some("may become the upstream's default branch")),
            (None, "refs/heads/topic", Some("may become the upstream's default branch")),
            (None, "refs/heads/there", None),
            // The upstream reports only the commit of `HEAD`, as old servers do.
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
            match (check_update(&GateRefs::default(), &upstream, "tool", &update), part) {
                (Ok(()), None) => {}
                (Err(result), Some(part)) if result.to_string().contains(part) => {}
                (result, part) => panic!("{head:?} {name}: {result:?}, not {part:?}"),
            }
            let allow = GateRefs { allow: Some(vec!["refs/heads/**".into()]), ..GateRefs::default() };
            assert_eq!(check_update(&allow, &upstream, "tool", &update), Ok(()));
        }
    }

    #[test]
    fn allows_the_first_push_to_create_the_default_branch() {
        let upstream = Upstream::default();
        let update = Update { old: ZERO.into(), new: OLD.into(), name: "refs/heads/main".into() };
        assert_eq!(check_update(&GateRefs::default(), &upstream, "tool", &update), Ok(()));
    }
}
