//! Renders the plan of each run of a case, and how the plan changes when the login's secret is known.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use bottle_host::Host;
use bottle_host::git_user::HostGitUser;
use bottle_manifest::resolve::Resolved;
use bottle_plan::{Flags, Plan, Value, Workspace};
use bottle_policy::route::render_routes;
use bottle_protocol::session::guest::{SecretText, Size};

/// Renders the plans of a case with `runs.txt`, which has one run per line: the words `terminal`, `resumed`,
/// `-p TASK` (a single word) and arguments after `--`. Each line of `secrets.txt` is a value of the login's
/// secret, with which the first plan is completed.
pub(super) fn shown(case: &Path, resolved: &Resolved) -> String {
    let mut text = String::new();
    let read = |name: &str| std::fs::read_to_string(case.join(name)).unwrap_or_default();
    let mut first = None;
    for line in read("runs.txt").lines() {
        let _ = writeln!(text, "run: {line}");
        match bottle_plan::build(&host(case), &resolved.manifest, &flags(line), &mut |_| {}) {
            Ok(plan) => {
                let _ = writeln!(text, "  {:?}", plan.agent.argv);
                first = first.or(Some(plan));
            }
            Err(error) => {
                let _ = writeln!(text, "  error: {error}");
            }
        }
    }
    let Some(plan) = first else { return text };
    whole(&mut text, &plan);
    for secret in read("secrets.txt").lines() {
        let ids = plan.secrets.iter().map(|need| need.id.clone());
        let values: BTreeMap<String, SecretText> = ids.map(|id| (id, secret.into())).collect();
        let _ = writeln!(text, "settled with {secret}");
        changes(&mut text, &plan, &plan.clone().settle(&values).expect("settled"));
    }
    text
}

fn whole(text: &mut String, plan: &Plan) {
    env(text, plan, |_| true);
    let _ = write!(text, "routes\n{}", indented(&render_routes(&plan.egress.routes)));
    for need in &plan.secrets {
        let _ = writeln!(text, "secret {}: {:?}, {}", need.id, need.source, need.purpose);
    }
    let _ = writeln!(text, "transcript {:?}", plan.transcript);
    files(text, plan, 0);
}

fn changes(text: &mut String, before: &Plan, after: &Plan) {
    assert_eq!(after.unsettled, None);
    env(text, after, |name| !before.env.contains_key(name));
    if before.egress.routes != after.egress.routes {
        let _ = write!(text, "routes\n{}", indented(&render_routes(&after.egress.routes)));
    }
    files(text, after, before.files.len());
}

fn env(text: &mut String, plan: &Plan, shown: impl Fn(&str) -> bool) {
    for (name, value) in plan.env.iter().filter(|(name, _)| shown(name)) {
        let value = match value {
            Value::Literal(literal) => format!("{literal:?}"),
            Value::Secret(id) => format!("the secret {id}"),
        };
        let _ = writeln!(text, "env {name}: {value}");
    }
}

fn files(text: &mut String, plan: &Plan, from: usize) {
    for file in &plan.files[from..] {
        let content = String::from_utf8_lossy(&file.content);
        let _ = write!(text, "file {} {:o}\n{}", file.path, file.mode, indented(&content));
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

fn flags(line: &str) -> Flags {
    let mut words = line.split_whitespace();
    let mut flags = Flags {
        budget: Vec::new(),
        slug: None,
        label: Some("My Bottle".to_owned()),
        color: Some("green".to_owned()),
        workspace: Workspace::Empty,
        live: None,
        repository: None,
        directories: Vec::new(),
        git_directories: Vec::new(),
        user_ignore_file: None,
        backend: "fake".to_owned(),
        ends_with: None,
        detached: false,
        task: None,
        terminal: None,
        stdin: false,
        arguments: Vec::new(),
        resumed: false,
        log_keep: 1 << 20,
        limits: Default::default(),
        metering: Default::default(),
        waits: Default::default(),
        unsupervised: false,
        renewal: Default::default(),
        learn: false,
        image: None,
        git_user: HostGitUser::default(),
    };
    while let Some(word) = words.next() {
        match word {
            "terminal" => flags.terminal = Some(Size { rows: 24, columns: 80 }),
            "resumed" => flags.resumed = true,
            "-p" => flags.task = words.next().map(str::to_owned),
            "--" => flags.arguments = words.by_ref().map(str::to_owned).collect(),
            other => panic!("{other}: not a word of runs.txt"),
        }
    }
    flags
}

fn host(case: &Path) -> Host {
    Host {
        env: BTreeMap::new(),
        cwd: case.join("work"),
        home: case.join("home"),
        user_home: case.join("user"),
        runtime: "/run/user".into(),
        program: "/usr/bin/bottle".into(),
    }
}
