//! Tests agents that start bottles: the key `mcp` of a bottle manifest, and the tools that this key gives the agent.

use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::server;
use serde_json::{Value, json};

use crate::home::{kill_keeper, run, snapshot};

/// The time limit for a step of a bottle on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A home with the agents `parent`, which may start `kid` and `rich`, and the running bottle `one` of `parent`. `None`
/// if the backend is not available.
fn parent(test: &str, mcp: &str) -> Result<Option<TestHome>> {
    let mut home = TestHome::new()?;
    if !home.runs(test, "linux")? {
        return Ok(None);
    }
    let base = "---\nbackend: linux\nagent_provider: {template: command, command: [sleep, '600']}\n";
    let grandchildren = "mcp: {agents: [kid], bottles: 9, access: control}\n";
    for (name, keys) in [
        ("parent", mcp),
        ("kid", grandchildren),
        ("rich", "egress: {routes: [{host: site.example, private: true}]}\nenv: {TOKEN: $TOKEN}\n"),
        ("other", ""),
    ] {
        home.bottle(name, &format!("{base}{keys}---\n"))?;
        home.agent(name, &format!("---\nbottle: {name}\n---\n"))?;
    }
    home.env("TOKEN", "not-for-the-parent-5up3r");
    start(&home, "parent", "one")?;
    Ok(Some(home))
}

fn start(home: &TestHome, agent: &str, label: &str) -> Result<()> {
    let mut start = home.program(["start", agent, "--detach", "--label", label, "-q", "--yes"])?;
    let _ = start.deadline(PATIENCE).run()?.expect_code(0);
    Ok(())
}

fn inside(home: &TestHome, bottle: &str, arguments: &[&str]) -> Result<Outcome> {
    let mut program = home.program(["exec", bottle, "--"].iter().chain(arguments).copied())?;
    program.deadline(PATIENCE).run()
}

/// Calls a tool in a bottle.
fn call(home: &TestHome, bottle: &str, tool: &str, arguments: &Value) -> Result<Outcome> {
    inside(home, bottle, &["bottle-ask", "call", tool, &arguments.to_string()])
}

/// Calls a tool, which must succeed. Returns the tool's JSON document.
fn done(home: &TestHome, tool: &str, arguments: &Value) -> Result<Value> {
    let outcome = call(home, "one", tool, arguments)?;
    ensure!(outcome.code == 0, "{tool} {arguments}: {}", outcome.stderr);
    Ok(serde_json::from_str(&outcome.stdout)?)
}

fn names(home: &TestHome, bottle: &str) -> Result<Vec<String>> {
    let tools: Value =
        serde_json::from_str(&inside(home, bottle, &["bottle-ask", "tools"])?.expect_code(0).stdout)?;
    let names = tools.as_array().context("tools")?.iter();
    Ok(names.filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect())
}

#[test]
fn an_agent_starts_and_drives_only_its_children() -> Result<()> {
    let mcp = "mcp: {agents: [kid, rich], bottles: 2, access: control}\n";
    let Some(home) = parent("children", mcp)? else { return Ok(()) };
    start(&home, "other", "other")?;
    let started = done(&home, "bottle_start", &json!({"agent": "kid"}))?;
    let kid = started["slug"].as_str().context("a slug")?.to_owned();
    let ran = done(&home, "terminal", &json!({"bottle": kid, "command": "echo a  b; id -u"}))?;
    ensure!(ran["stdout"]["text"] == "a b\n1000\n", "{ran}");
    done(&home, "file_write", &json!({"bottle": kid, "path": "work", "content": "x"}))?;
    let listed = done(&home, "bottle_list", &json!({}))?;
    let slugs: Vec<&Value> =
        listed["items"].as_array().into_iter().flatten().map(|item| &item["slug"]).collect();
    ensure!(slugs == [kid.as_str()], "{listed}");
    ensure!(!listed.to_string().contains("/"), "a path of the machine: {listed}");
    let processes = done(&home, "process_list", &json!({"bottle": kid}))?;
    ensure!(processes["items"][0]["state"] == "running", "{processes}");
    // The list of the parent can include the processes of its children.
    let bottles = |flags: &[&str]| -> Result<Vec<Value>> {
        let listed = run(&home, &[&["ps", "one", "--json"], flags].concat())?.expect_code(0).json()?;
        Ok(listed.as_array().into_iter().flatten().map(|process| process["bottle"].clone()).collect())
    };
    ensure!(bottles(&[])? == ["one"] && bottles(&["--children"])? == ["one", kid.as_str()]);
    let table = run(&home, &["ps", "one", "--children"])?.expect_code(0).stdout;
    ensure!(table.lines().nth(1).is_some_and(|line| line.starts_with(&format!("{kid}\tagent\t"))), "{table}");

    // A child has no tools for its parent, its siblings or further children, although its manifest has `mcp`.
    ensure!(names(&home, &kid)?.len() == 4, "{:?}", names(&home, &kid)?);
    let none = call(&home, &kid, "bottle_start", &json!({"agent": "kid"}))?;
    ensure!(none.code == 2 && none.stderr.contains("unknown tool"), "{}", none.stderr);

    let mut said = Vec::new();
    for (tool, arguments) in [
        ("bottle_start", json!({"agent": "rich"})),
        ("bottle_start", json!({"agent": "other"})),
        ("bottle_start", json!({"agent": "absent"})),
        ("bottle_start", json!({"agent": "--help"})),
        ("bottle_start", json!({"agent": "kid", "copy_cwd": true})),
        ("terminal", json!({"bottle": "other", "command": "id"})),
        ("terminal", json!({"bottle": "one", "command": "id"})),
        ("terminal", json!({"bottle": kid, "command": "id", "user": "root"})),
        ("bottle_stop", json!({"bottle": "one"})),
        ("bottle_pull", json!({"bottle": kid})),
        ("env_run", json!({"task": "x", "command": "id"})),
    ] {
        let outcome = call(&home, "one", tool, &arguments)?;
        ensure!(outcome.code == 2, "{tool} {arguments}: {}", outcome.stdout);
        said.push(format!("{tool} {arguments}\n  {}", outcome.stderr.trim()).replace(&kid, "KID"));
    }
    snapshot!(said.join("\n"));

    // Several starts at the same time do not exceed the count.
    let many = "for i in 1 2 3; do bottle-ask call bottle_start '{\"agent\": \"kid\"}' & done; wait";
    let outcome = inside(&home, "one", &["sh", "-c", many])?;
    ensure!(outcome.stdout.matches("slug").count() == 1, "{} {}", outcome.stdout, outcome.stderr);
    ensure!(outcome.stderr.matches("one has 2 already").count() == 2, "{}", outcome.stderr);
    // A child with kept files is counted too, until it is discarded.
    let stopped = done(&home, "bottle_stop", &json!({"bottle": kid, "time": 0}))?;
    ensure!(stopped["kept"] == "files" && stopped["workspace"].is_null(), "{stopped}");
    let full = call(&home, "one", "bottle_start", &json!({"agent": "kid"}))?;
    ensure!(full.stderr.contains("one has 2 already"), "{} {}", full.stdout, full.stderr);
    done(&home, "bottle_discard", &json!({"bottle": kid}))?;
    let again = done(&home, "bottle_start", &json!({"agent": "kid"}))?;
    ensure!(again["slug"].is_string(), "{again}");
    // A command that starts a bottle without comparing the bottle with its parent is refused.
    let record = run(&home, &["list", "--json"])?.expect_code(0).json()?;
    let client = record.as_array().into_iter().flatten().find_map(|bottle| bottle["parent"].as_str());
    let mut fork = home.program(["fork", "other"])?;
    let refused = fork.env("BOTTLE_PARENT", client.context("a parent")?).run()?.expect_code(1);
    ensure!(refused.stderr.contains("only `bottle start` can"), "{}", refused.stderr);
    Ok(())
}

const KEY: &str = "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4Po6As8Dg1Hj3Kl5";

/// The status of a request in a bottle, or the reason of its denial.
fn requested(home: &TestHome, bottle: &str, host: &str) -> Result<String> {
    let url = format!("http://{host}/open");
    let head = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code} %header{x-bottle-reason}", &url];
    Ok(inside(home, bottle, &head)?.expect_code(0).stdout.trim().to_owned())
}

/// A change of a parent also applies to its children: a denial, a stop of its requests to models, a lock-out.
#[test]
fn what_happens_to_a_parent_holds_for_its_children() -> Result<()> {
    let mut home = TestHome::new()?;
    if !home.runs("children of a narrowed parent", "linux")? {
        return Ok(());
    }
    let site = server::says_yes(Ipv4Addr::LOCALHOST.into())?;
    let base = format!(
        "---\nbackend: linux\nagent_provider: {{template: command, command: [sleep, '600']}}\negress:\n  routes:\n  \
         - host: '*.site.example'\n    ports: [80]\n    connect_to: \"{site}\"\n"
    );
    let key = "  - host: key.example\n    auth: {scheme: Bearer, token_ref: WALK_KEY}\n";
    let mcp = "mcp: {agents: [kid], bottles: 3, access: control}\n";
    for (name, keys) in [("parent", format!("{key}{mcp}")), ("kid", String::new())] {
        home.bottle(name, &format!("{base}{keys}---\n"))?;
        home.agent(name, &format!("---\nbottle: {name}\n---\n"))?;
    }
    home.env("WALK_KEY", KEY);
    start(&home, "parent", "one")?;
    let kid = done(&home, "bottle_start", &json!({"agent": "kid"}))?["slug"].clone();
    let kid = kid.as_str().context("a slug")?;
    ensure!(requested(&home, kid, "a.site.example")? == "200");

    let denied = run(&home, &["deny", "one", "a.site.example"])?.expect_code(0);
    ensure!(!denied.stderr.contains("may still reach"), "{}", denied.stderr);
    let answers = ["one", kid].map(|bottle| requested(&home, bottle, "a.site.example"));
    for answer in answers {
        let answer = answer?;
        ensure!(answer.starts_with("403"), "{answer}");
    }
    ensure!(requested(&home, kid, "b.site.example")? == "200");
    // A new child does not get the denied permission either.
    let more = call(&home, "one", "bottle_start", &json!({"agent": "kid"}))?;
    ensure!(more.code == 2 && more.stderr.contains("which it has no more"), "{}", more.stderr);

    let _ = run(&home, &["budget", "stop", "one", "--policy", "cutoff"])?.expect_code(0);
    let audit = run(&home, &["audit", "show", kid, "--json"])?.expect_code(0).stdout;
    ensure!(audit.contains("\"cutoff\""), "{audit}");
    let more = call(&home, "one", "bottle_start", &json!({"agent": "kid"}))?;
    ensure!(more.code == 2 && more.stderr.contains("requests of one to models"), "{}", more.stderr);

    let guess = format!(
        "K={KEY}; for i in 0 1 2 3 4; do curl -s -o /dev/null -H \"x-guess: ${{K:$i:16}}\" http://b.site.example/; done"
    );
    let _ = inside(&home, "one", &["bash", "-c", &guess])?.expect_code(0);
    let end = Instant::now() + PATIENCE;
    while requested(&home, kid, "b.site.example")? != "403 locked-out" {
        ensure!(Instant::now() < end, "the child is not locked");
        std::thread::sleep(Duration::from_millis(100));
    }
    let listed = run(&home, &["list", "--json"])?.expect_code(0).json()?;
    let mut bottles = listed.as_array().into_iter().flatten();
    let child = bottles.find(|bottle| bottle["slug"] == kid).context("the child")?;
    ensure!(child["locked"]["parent"] == "one", "{child}");
    Ok(())
}

#[test]
fn by_default_an_agent_reads_its_children_and_one_without_the_key_has_none() -> Result<()> {
    let Some(home) = parent("children that are read", "mcp: {agents: [kid]}\n")? else { return Ok(()) };
    snapshot!(names(&home, "one")?.join("\n"));
    let kid = done(&home, "bottle_start", &json!({"agent": "kid"}))?["slug"].clone();
    let agent = done(&home, "process_list", &json!({"bottle": kid}))?["items"][0].clone();
    for (tool, arguments) in [
        ("terminal", json!({"bottle": kid, "command": "id"})),
        ("process_kill", json!({"bottle": kid, "process": "p1"})),
        ("process_write", json!({"bottle": kid, "process": "p1", "text": "x"})),
        ("process_signal", json!({"bottle": kid, "process": "p1", "signal": "INT"})),
        ("file_write", json!({"bottle": kid, "path": "x", "content": "x"})),
    ] {
        let outcome = call(&home, "one", tool, &arguments)?;
        ensure!(outcome.stderr.contains("there is no tool"), "{tool}: {} {}", outcome.stdout, outcome.stderr);
    }
    let after = done(&home, "process_list", &json!({"bottle": kid}))?["items"][0].clone();
    ensure!(agent["pid"] == after["pid"] && after["state"] == "running", "{after}");

    start(&home, "other", "without")?;
    ensure!(names(&home, "without")?.len() == 4, "{:?}", names(&home, "without")?);
    Ok(())
}

#[test]
fn a_child_ends_when_its_parent_ends() -> Result<()> {
    let Some(home) = parent("children that end", "mcp: {agents: [kid], bottles: 2}\n")? else {
        return Ok(());
    };
    let kid =
        done(&home, "bottle_start", &json!({"agent": "kid"}))?["slug"].as_str().context("a slug")?.to_owned();
    let _ = run(&home, &["stop", "one", "-q"])?.expect_code(0);
    let status = |slug: &str| -> Result<Value> {
        let listed = run(&home, &["list", "--json"])?.expect_code(0).json()?;
        let found = listed.as_array().into_iter().flatten().find(|bottle| bottle["slug"] == slug).cloned();
        Ok(found.unwrap_or_default()["status"].clone())
    };
    let end = Instant::now() + PATIENCE;
    while status(&kid)? == "running" || status(&kid)? == "ending" {
        if Instant::now() > end {
            bail!("{kid} goes on");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // The next bottle with the parent's name has no children.
    start(&home, "parent", "one")?;
    ensure!(done(&home, "bottle_list", &json!({}))?["items"] == json!([]));
    // If the keeper and the watcher of a bottle are killed, its children end too.
    let kid =
        done(&home, "bottle_start", &json!({"agent": "kid"}))?["slug"].as_str().context("a slug")?.to_owned();
    ensure!(status(&kid)? == "running");
    kill_keeper(&home, "one")?;
    let _ = run(&home, &["cleanup", "--yes", "-q"])?;
    while status(&kid)? == "running" || status(&kid)? == "ending" {
        if Instant::now() > end + PATIENCE * 2 {
            bail!("{kid} goes on");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The processes of bottles of this home, except those of the bottle `one`.
fn processes(home: &TestHome) -> Result<Vec<String>> {
    let hash = format!("\0{}\0", bottle_host::home_hash(&home.bottle_home()));
    let lines = fs::read_dir("/proc")?.filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    Ok(lines
        .filter(|line| line.contains(&hash) && !line.contains("\0one\0"))
        .map(|line| line.replace('\0', " "))
        .collect())
}

/// The call runs in the keeper of the parent, so the call ends when the keeper ends.
#[test]
fn a_start_whose_parent_ends_leaves_nothing() -> Result<()> {
    let Some(home) = parent("starts that are dropped", "mcp: {agents: [kid], bottles: 2}\n")? else {
        return Ok(());
    };
    let ask = "bottle-ask call bottle_start '{\"agent\": \"kid\"}' >/tmp/answer 2>&1";
    for delay in [30, 300, 900] {
        for end in ["the agent gives up", "the parent is stopped", "the keeper is killed"] {
            let case = format!("{end} after {delay} ms");
            let script = match end {
                "the agent gives up" => {
                    format!("{ask} & sleep {}; kill -9 $! || true", f64::from(delay) / 1000.0)
                }
                _ => format!("setsid {ask} & sleep {}", f64::from(delay) / 1000.0),
            };
            let _ = inside(&home, "one", &["sh", "-c", &script])?.expect_code(0);
            match end {
                "the agent gives up" => {}
                "the parent is stopped" => {
                    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
                }
                _ => kill_keeper(&home, "one")?,
            }
            let deadline = Instant::now() + PATIENCE;
            loop {
                let _ = run(&home, &["cleanup", "--yes", "-q"])?;
                let listed = run(&home, &["list", "--json"])?.expect_code(0).json()?;
                let bottles = listed.as_array().context("a list")?;
                // A start that was complete before the parent ended is not undone.
                let kids = bottles.iter().filter(|bottle| bottle["slug"] != "one");
                let done = kids.clone().all(|kid| end == "the agent gives up" && kid["status"] == "running");
                let tmp = fs::read_dir(home.bottle_home().join("tmp")).map_or(0, Iterator::count);
                let processes = processes(&home)?;
                let is_quiet = kids.clone().next().is_some() || processes.is_empty();
                if done && tmp == 0 && is_quiet {
                    for kid in kids.filter_map(|kid| kid["slug"].as_str()) {
                        let _ = run(&home, &["stop", kid, "--time", "0", "-q"])?.expect_code(0);
                    }
                    break;
                }
                ensure!(Instant::now() < deadline, "{case}: {listed}, {tmp} temporary, {processes:?}");
                std::thread::sleep(Duration::from_millis(100));
            }
            if end != "the agent gives up" {
                // A bottle without a keeper keeps running until a command adopts it.
                let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?;
                let _ = run(&home, &["discard", "one", "--yes", "-q"])?;
                start(&home, "parent", "one")?;
            }
            // The keeper still carries out calls.
            ensure!(done(&home, "bottle_list", &json!({}))?["items"].is_array(), "{case}");
        }
    }
    Ok(())
}
