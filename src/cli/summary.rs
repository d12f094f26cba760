//! Renders the resolved configuration of an agent and its bottles on one screen, for `info` and the
//! preflight.

use std::fmt::Write as _;
use std::path::Path;

use bottle_lib::launch::preflight::of_project;
use bottle_lib::text::{from_home, names};
use bottle_manifest::git_gate::RefRules;
use bottle_manifest::mcp::{Access, ChildRules};
use bottle_manifest::resolve::{GitUser, Resolved, ResolvedManifest, weakening_settings};
use bottle_manifest::skills::Skill;
use bottle_policy::names::Name;
use bottle_policy::route::{Dlp, OnMatch, OutboundDetector, PathMatch, RequestMatch, Route};
use dialoguer::console::measure_text_width;
use indicatif::HumanBytes;

use crate::console::output::{Styles, counted, inert};

/// The width of the key column.
const KEYS: usize = 9;

/// The column where values start.
const BEGIN: usize = KEYS + 3;

/// The indentation of the continuation of a wrapped line. This indentation distinguishes a continuation from a new
/// line.
const INDENT: usize = 2;

/// The minimum width, in columns, at which the wrapped lines of a sentence are aligned with its start.
const ROOM: usize = 30;

/// The maximum width of the column of host names. A longer host name shifts the rest of its line to the right.
const HOSTS: usize = 28;

/// The maximum number of paths listed for one entry of a route's `matches`. Further paths are only counted.
const PATHS: usize = 3;

/// The maximum number of characters of the prompt that are shown.
const PROMPT: usize = 60;

/// The detectors that run on a route without `dlp.outbound_detectors`.
const DEFAULT_DETECTORS: [OutboundDetector; 2] =
    [OutboundDetector::TokenPatterns, OutboundDetector::KnownSecrets];

/// The importance of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// An ordinary row.
    Plain,
    /// A row that needs the user's attention.
    Notice,
    /// A row about settings that weaken the bottle's isolation.
    Alarm,
}

/// A summary: a heading, and rows that consist of a key and its lines.
#[derive(Debug)]
pub(crate) struct Summary {
    heading: String,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    key: &'static str,
    tone: Tone,
    lines: Vec<String>,
    /// The indentation of wrapped lines, relative to the start of the value.
    indent: usize,
}

impl Summary {
    /// Creates a summary that names the agent and its bottles. Paths below `home` are shortened to `~`.
    pub(crate) fn new(resolved: &Resolved, home: &Path) -> Self {
        let manifest = &resolved.manifest;
        let heading =
            format!("{}  {}", manifest.agent.name, from_home(&manifest.agent.source.to_string(), home));
        let mut summary = Self { heading, rows: Vec::new() };
        summary.row("bottles", Tone::Plain, vec![names(&manifest.bottles)]);
        let line: Vec<Name> = manifest.layers.iter().map(|layer| layer.name.clone()).collect();
        if line != manifest.bottles {
            summary.row("layers", Tone::Plain, vec![names(&line)]);
        }
        summary
    }

    /// Adds a row, unless `lines` is empty.
    pub(crate) fn row(&mut self, key: &'static str, tone: Tone, lines: Vec<String>) {
        self.indented(key, tone, lines, INDENT);
    }

    fn indented(&mut self, key: &'static str, tone: Tone, lines: Vec<String>, indent: usize) {
        if !lines.is_empty() {
            self.rows.push(Row { key, tone, lines, indent });
        }
    }

    /// Adds rows about the agent's properties in the bottle: its skills, its prompt, the names of its environment
    /// variables, and its repositories behind the git gate.
    pub(crate) fn inside(&mut self, manifest: &ResolvedManifest, home: &Path) {
        let skills = manifest.agent.skills.iter().map(|named| skill(&named.value, home));
        self.row("skills", Tone::Plain, skills.collect());
        self.row("prompt", Tone::Plain, prompt(&manifest.agent.prompt).into_iter().collect());
        let variables: Vec<&str> = manifest.env.keys().map(String::as_str).collect();
        if !variables.is_empty() {
            self.row("env", Tone::Plain, vec![variables.join(", ")]);
        }
        let git = manifest.repos.iter().map(|(name, repo)| {
            format!("{name} \u{2192} {}: fetch; push {}", repo.url.value.as_str(), pushes(&repo.refs.value))
        });
        self.row("git", Tone::Plain, git.collect());
        self.row("starts", Tone::Plain, manifest.mcp.iter().map(|rules| starts(&rules.value)).collect());
    }

    /// Adds the author of the agent's commits, if the manifests name an author.
    pub(crate) fn author(&mut self, manifest: &ResolvedManifest) {
        self.row("commits", Tone::Plain, author(&manifest.git_user).into_iter().collect());
    }

    /// Adds the reachable hosts and the weakening settings. `else_weaker` lists weaknesses that do not come
    /// from the manifest.
    pub(crate) fn reach(&mut self, manifest: &ResolvedManifest, home: &Path, else_weaker: Vec<String>) {
        let (lines, indent) = reaches(manifest, home);
        self.indented("reaches", Tone::Plain, lines, indent);
        let weaker = weakening_settings(manifest).into_iter().map(|weakness| {
            let origin = from_home(&weakness.origin.to_string(), home);
            format!("{} {} ({origin})", weakness.host, weakness.sentence())
        });
        self.row("weaker", Tone::Alarm, else_weaker.into_iter().chain(weaker).collect());
    }

    /// Adds a row with the choices that come from the project's manifest and not from the user.
    pub(crate) fn project(&mut self, resolved: &Resolved) {
        self.row("project", Tone::Notice, of_project(resolved));
    }

    /// Renders the text, with at most `most` lines per row.
    pub(crate) fn text(&self, styles: Styles, most: Option<usize>) -> String {
        let mut text = format!("{}\n", styles.bold(&inert(&self.heading)));
        for Row { key, tone, lines, indent } in &self.rows {
            let indent = if styles.columns().is_some_and(|columns| columns < BEGIN + indent + ROOM) {
                INDENT
            } else {
                *indent
            };
            let most = most.unwrap_or(usize::MAX);
            // If lines are omitted, the note about them replaces one more line.
            let shown = if lines.len() > most { most.saturating_sub(1) } else { lines.len() };
            let more = lines.len() - shown;
            let more = (more > 0).then(|| format!("and {more} more"));
            let mut key = (*key).to_owned();
            for line in lines.iter().take(shown).cloned().chain(more) {
                let line = styles.hanging_from(&inert(&line), BEGIN, BEGIN + indent);
                let _ = writeln!(text, "  {} {line}", tone.styles(styles, &format!("{key:<KEYS$}")));
                key.clear();
            }
        }
        text
    }
}

impl Tone {
    fn styles(self, styles: Styles, text: &str) -> String {
        match self {
            Self::Plain => styles.dim(text),
            Self::Notice => styles.yellow(text),
            Self::Alarm => styles.red(text),
        }
    }
}

/// Describes the bottles that the agent may start.
fn starts(rules: &ChildRules) -> String {
    let does = match rules.access {
        Access::Read => "reads",
        Access::Control => "controls",
    };
    format!("at most {} of {}, which it {does}", counted(rules.bottles, "bottle"), names(&rules.agents))
}

/// Returns a line for each route, and the column where its description starts.
fn reaches(manifest: &ResolvedManifest, home: &Path) -> (Vec<String>, usize) {
    let routes = &manifest.egress.routes;
    if routes.is_empty() {
        return (vec!["nothing: there are no routes".to_owned()], INDENT);
    }
    let hosts: Vec<String> = routes.iter().map(|route| host(&route.value)).collect();
    let width = hosts.iter().map(|host| measure_text_width(host)).max().unwrap_or(0).min(HOSTS);
    let line = |(route, host): (&bottle_manifest::origin::Traced<Route>, &String)| {
        let origin = from_home(&route.origin.to_string(), home);
        format!("{host:<width$}  {}  ({origin})", sentence(&route.value))
    };
    (routes.iter().zip(&hosts).map(line).collect(), width + 2)
}

fn host(route: &Route) -> String {
    let ports = route.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    if route.ports == [443] { route.host.to_string() } else { format!("{}:{ports}", route.host) }
}

/// Describes a skill by the number and the size of the files that are copied into the bottle, and by its directory.
fn skill(skill: &Skill, home: &Path) -> String {
    let files = u64::try_from(skill.files.len()).unwrap_or(u64::MAX);
    let bytes = skill.files.iter().map(|file| file.size).sum();
    let directory = from_home(&skill.directory.display().to_string(), home);
    format!("{}: {}, {}, from {directory}", skill.name, counted(files, "file"), HumanBytes(bytes))
}

/// Describes the prompt by its length and its first line. Returns `None` if there is no prompt.
fn prompt(text: &str) -> Option<String> {
    let text = text.trim();
    let first = text.lines().next().filter(|line| !line.is_empty())?;
    let begin: String = first.chars().take(PROMPT).collect();
    let rest = if begin.len() < text.len() { "…" } else { "" };
    let characters = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
    Some(format!("{begin}{rest}  ({})", counted(characters, "character")))
}

/// Describes the identity of the agent's commits. Returns `None` if the manifests set no identity.
fn author(user: &GitUser) -> Option<String> {
    let name = user.name.as_ref().map(|name| name.value.as_str());
    let email = user.email.as_ref().map(|email| format!("<{}>", email.value));
    let words: Vec<&str> = name.into_iter().chain(email.as_deref()).collect();
    (!words.is_empty()).then(|| format!("as {}", words.join(" ")))
}

/// Describes the refs that a push may change.
fn pushes(refs: &RefRules) -> String {
    let mut text = match refs.allow.as_deref() {
        None => "any branch but the default".to_owned(),
        Some([]) => return "nothing".to_owned(),
        Some(allowed) => allowed.join(", "),
    };
    for (set, extra) in [(refs.tags, "tags"), (refs.force, "with force"), (refs.delete, "delete")] {
        if set {
            let _ = write!(text, ", {extra}");
        }
    }
    if !refs.deny.is_empty() {
        let _ = write!(text, "; never {}", refs.deny.join(", "));
    }
    text
}

/// Describes the requests that a route allows, and how the scanner treats them, as part of a sentence.
fn sentence(route: &Route) -> String {
    let mut parts = if route.matches.is_empty() {
        vec!["any request".to_owned()]
    } else {
        route.matches.iter().map(request).collect()
    };
    parts.dedup();
    if route.git_fetch {
        parts.push("git clone and fetch".to_owned());
    }
    if route.denies_all() {
        return "nothing".to_owned();
    }
    if !route.except.is_empty() {
        parts.push(format!("except {}", route.except.iter().map(request).collect::<Vec<_>>().join("; ")));
    }
    if route.auth.is_some() {
        parts.push("with a credential that the proxy adds".to_owned());
    }
    parts.extend(scanning(route));
    parts.join("; ")
}

/// Describes how the scanner treats the route's requests, if the route changes the default. Omits routes on which no
/// detector runs, because the row of weakening settings lists them.
fn scanning(route: &Route) -> Vec<String> {
    let Dlp { outbound_detectors, .. } = &route.dlp;
    let mut parts = Vec::new();
    let detectors = outbound_detectors.as_deref().unwrap_or(&DEFAULT_DETECTORS);
    if !detectors.is_empty() {
        let missing = DEFAULT_DETECTORS.iter().filter(|detector| !detectors.contains(detector));
        parts.extend(missing.map(|detector| format!("not scanned for {}", detected(*detector))));
        if detectors.contains(&OutboundDetector::Entropy) {
            parts.push(format!("also scanned for {}", detected(OutboundDetector::Entropy)));
        }
        let usual = Route { dlp: Dlp::default(), ..route.clone() }.on_match();
        parts.extend((route.on_match() != usual).then(|| {
            match route.on_match() {
                OnMatch::Supervise => "asks you about a found secret",
                OnMatch::Redact => "found secrets are redacted",
                OnMatch::Block => "a found secret denies the request",
            }
            .to_owned()
        }));
    }
    parts
}

fn detected(detector: OutboundDetector) -> &'static str {
    match detector {
        OutboundDetector::TokenPatterns => "token patterns",
        OutboundDetector::KnownSecrets => "known secrets",
        OutboundDetector::Entropy => "random text (entropy)",
    }
}

fn request(request: &RequestMatch) -> String {
    let methods =
        if request.methods.is_empty() { "any method".to_owned() } else { request.methods.join(", ") };
    let mut paths: Vec<String> = request.paths.iter().take(PATHS).map(path).collect();
    if request.paths.len() > PATHS {
        paths.push(format!("{} more", request.paths.len() - PATHS));
    }
    let headers = if request.headers.is_empty() { "" } else { " with certain headers" };
    if paths.is_empty() {
        format!("{methods}{headers}")
    } else {
        format!("{methods} {}{headers}", paths.join(", "))
    }
}

fn path(path: &PathMatch) -> String {
    match path {
        PathMatch::Prefix(prefix) => format!("{}/…", prefix.trim_end_matches('/')),
        PathMatch::Exact(exact) => exact.clone(),
        PathMatch::Regex(pattern) => pattern.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use bottle_manifest::skills::SkillFile;
    use bottle_policy::route::{Form, parse_route};

    use super::*;

    #[test]
    fn shortens_only_the_users_home() {
        let home = Path::new("/home/ann");
        assert_eq!(from_home("/home/ann/.bottle/a.md:3", home), "~/.bottle/a.md:3");
        assert_eq!(from_home("/home/anna/a.md", home), "/home/anna/a.md");
        assert_eq!(from_home("/a.md", Path::new("/")), "/a.md");
    }

    #[test]
    fn a_route_names_the_scanning_that_differs_from_the_default() {
        for (keys, expected) in [
            ("", "any request"),
            ("dlp: {}", "any request"),
            ("dlp: {outbound_detectors: [known_secrets, token_patterns]}", "any request"),
            ("dlp: {outbound_on_match: supervise}", "any request"),
            // The row of weakening settings lists this setting, so the sentence omits it.
            ("dlp: {outbound_detectors: false}", "any request"),
            ("dlp: {outbound_on_match: block}", "any request; a found secret denies the request"),
            ("dlp: {outbound_on_match: redact}", "any request; found secrets are redacted"),
            ("dlp: {outbound_detectors: [known_secrets]}", "any request; not scanned for token patterns"),
            (
                "dlp: {outbound_detectors: [token_patterns, known_secrets, entropy]}",
                "any request; also scanned for random text (entropy)",
            ),
            // The route allows every request, not only git's.
            ("git: {fetch: true}", "any request; git clone and fetch"),
        ] {
            let text = format!("host: a.example\n{keys}\n");
            let route = parse_route(&text, Form::Manifest).expect(keys);
            assert_eq!(sentence(&route), expected, "{keys}");
        }
        let provider =
            Route { provider: true, ..parse_route("host: a.example", Form::Manifest).expect("route") };
        assert_eq!(sentence(&provider), "any request");
        let asks = Dlp { outbound_on_match: Some(OnMatch::Supervise), ..Dlp::default() };
        let provider = Route { dlp: asks, ..provider };
        assert_eq!(sentence(&provider), "any request; asks you about a found secret");
    }

    #[test]
    fn describes_what_a_push_may_change() {
        let rules = |allow: Option<&[&str]>| RefRules {
            allow: allow.map(|refs| refs.iter().map(|name| (*name).to_owned()).collect()),
            ..RefRules::default()
        };
        assert_eq!(pushes(&rules(None)), "any branch but the default");
        assert_eq!(pushes(&rules(Some(&[]))), "nothing");
        let all = RefRules {
            deny: vec!["refs/heads/main".to_owned()],
            force: true,
            delete: true,
            tags: true,
            ..rules(Some(&["refs/heads/a", "refs/heads/b/*"]))
        };
        assert_eq!(
            pushes(&all),
            "refs/heads/a, refs/heads/b/*, tags, with force, delete; never refs/heads/main"
        );
    }

    #[test]
    fn a_skill_has_the_number_and_size_of_its_files() {
        let file = |path: &str, size| SkillFile {
            path: path.to_owned(),
            source: Path::new("/dotfiles/review").join(path),
            size,
            executable: false,
        };
        let name: Name = "review".parse().expect("a name");
        let found =
            |files| Skill { name: name.clone(), directory: "/home/ann/.bottle/skills/review".into(), files };
        let shown = |files| skill(&found(files), Path::new("/home/ann"));
        assert_eq!(shown(vec![]), "review: 0 files, 0 B, from ~/.bottle/skills/review");
        assert_eq!(shown(vec![file("SKILL.md", 9)]), "review: 1 file, 9 B, from ~/.bottle/skills/review");
        let two = vec![file("SKILL.md", 9), file("lib/steps", 3 << 20)];
        assert_eq!(shown(two), "review: 2 files, 3.00 MiB, from ~/.bottle/skills/review");
    }

    #[test]
    fn shows_the_begin_and_length_of_a_prompt() {
        assert_eq!(prompt(" \n"), None);
        assert_eq!(prompt("Do it.\n").as_deref(), Some("Do it.  (6 characters)"));
        assert_eq!(prompt("x").as_deref(), Some("x  (1 character)"));
        assert_eq!(prompt("Do it.\nNow.").as_deref(), Some("Do it.…  (11 characters)"));
        let long = "ü".repeat(100);
        let shown = prompt(&long).expect("a prompt");
        assert_eq!(shown, format!("{}…  (100 characters)", "ü".repeat(60)));
    }

    #[test]
    fn a_long_row_counts_the_omitted_lines() {
        let mut summary = Summary { heading: "a".to_owned(), rows: Vec::new() };
        summary.row("few", Tone::Plain, vec!["1".into(), "2".into(), "3".into()]);
        summary.row("many", Tone::Alarm, (1..=9).map(|number| number.to_string()).collect());
        summary.row("none", Tone::Plain, Vec::new());
        let expected = "a\n  few       1\n            2\n            3\n  many      1\n            2\n            and 7 more\n";
        assert_eq!(summary.text(Styles::PLAIN, Some(3)), expected);
    }
}
