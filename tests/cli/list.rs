//! Tests commands that change nothing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{bottle, home, kill_keeper, kill_role, run, snapshot, transcripts};

/// A bottle manifest that has content for every section of the output.
const WIDE: &str = "\
---
backend: fake
agent_provider: {template: command, command: [echo, hi]}
env: {PLAIN: text, TOKEN: $THE_TOKEN}
egress:
  routes:
    - host: api.example.com
      auth: {scheme: Bearer, token_ref: env:API_KEY}
      matches: [{paths: [{type: prefix, value: /v1}], methods: [POST]}]
    - host: pinned.example.com
      inspect: false
    - host: inner.example.com
      private: true
---
";

#[test]
fn info_shows_agent_bottles_and_reachable_hosts() -> Result<()> {
    let mut home = home()?;
    home.bottle("wide", WIDE)?;
    snapshot!(transcripts(
        &home,
        &[
            &["info", "hi", "--bottle", "wide"],
            &["info", "hi", "--bottle", "wide", "--bottle", "env", "--explain"]
        ],
    )?);
    Ok(())
}

/// A bottle manifest with a git identity, repositories and scanning settings.
const GATED: &str = "\
---
backend: fake
agent_provider: {template: command, command: [echo, hi]}
env: {PLAIN: text, TOKEN: $THE_TOKEN}
git-gate:
  user: {name: Coder, email: coder@example.com}
  repos:
    proj: {url: 'ssh://git@git.example.com/team/proj.git', key: {provider: static, path: ~/.ssh/id}}
    tool:
      url: ssh://git@git.example.com/team/tool.git
      key: {provider: static, path: ~/.ssh/id}
      refs: {allow: [refs/heads/bot/*], tags: true}
egress:
  routes:
    - host: plain.example.com
      ports: [80, 443]
    - host: strict.example.com
      matches: [{methods: [GET], paths: [{value: /v1}]}]
      dlp: {outbound_on_match: block}
    - host: every.example.com
      matches: [{}]
---
";

#[test]
fn info_shows_what_the_agent_gets_in_the_bottle() -> Result<()> {
    let mut home = home()?;
    let agent = "---\nbottle: gated\nskills: [review]\n---\nFix one bug.\nThen stop.\n";
    home.bottle("gated", GATED)?.agent("coder", agent)?;
    home.write("home/.bottle/skills/review/SKILL.md", "words\n")?;
    let info = run(&home, &["info", "coder"])?.expect_code(0).stdout;
    for line in [
        "  skills    review: 1 file, 6 B, from ~/.bottle/skills/review",
        "  prompt    Fix one bug.…  (23 characters)",
        "  env       PLAIN, TOKEN",
        "  commits   as Coder <coder@example.com>",
        "  git       proj → ssh://git@git.example.com/team/proj.git: fetch; push any branch but the default",
        "tool → ssh://git@git.example.com/team/tool.git: fetch; push refs/heads/bot/*, tags",
        "plain.example.com:80,443  any request  (",
        "GET /v1/…; a found secret denies the request  (",
        "every.example.com         any request  (",
    ] {
        assert!(info.contains(line), "{line:?} is missing:\n{info}");
    }
    Ok(())
}

#[test]
fn the_preview_counts_what_is_copied() -> Result<()> {
    let home = home()?;
    for (path, text) in
        [("a.txt", "12345"), ("b/c.txt", "123"), ("ignored.log", "1"), (".gitignore", "*.log\n")]
    {
        home.write(&format!("project/{path}"), text)?;
    }
    for (flag, words) in
        [("--cwd", "without ignored files: 3 files, 14 B"), ("--cwd=all", "with all files: 4 files, 15 B")]
    {
        let preview = run(&home, &["start", "hi", flag, "--dry-run"])?.expect_code(0).stdout;
        assert!(preview.contains(words), "{preview}");
    }
    Ok(())
}

#[test]
fn a_dry_run_shows_the_whole_preview_and_starts_nothing() -> Result<()> {
    let mut home = home()?;
    home.bottle("wide", WIDE)?;
    snapshot!(transcripts(
        &home,
        &[
            &["start", "hi", "--bottle", "wide", "--dry-run", "--", "more words"],
            &["start", "hi", "--bottle", "wide", "--dry-run", "--json", "--label", "L1"],
        ],
    )?);
    assert!(!home.bottle_home().join("state").exists());
    Ok(())
}

#[test]
fn policy_check_decides_as_the_proxy_does() -> Result<()> {
    let mut home = home()?;
    home.bottle("wide", WIDE)?;
    let ask = |method: &'static str, url: &'static str| {
        ["policy", "check", method, url, "--agent", "hi", "--bottle", "wide"]
    };
    snapshot!(transcripts(
        &home,
        &[
            &ask("POST", "https://api.example.com/v1/things?x=1"),
            &ask("GET", "https://api.example.com/v1/things"),
            &ask("POST", "https://api.example.com/v1/%2e%2e/admin"),
            &ask("GET", "https://api.example.com:8443/"),
            &ask("GET", "https://pinned.example.com/"),
            &ask("GET", "https://elsewhere.example.org/"),
            &[&ask("POST", "https://api.example.com/v1")[..], &["--json"]].concat(),
            &[&ask("GET", "https://elsewhere.example.org/")[..], &["--json"]].concat(),
        ],
    )?);
    Ok(())
}

#[test]
fn policy_check_scans_what_would_leave() -> Result<()> {
    let mut home = home()?;
    home.bottle("wide", WIDE)?;
    let token = "glpat-Xk3Vw9QzR7tYp2LmNb5c";
    let note = format!("X-Note: {token}");
    let credential = format!("Authorization: Bearer {token}");
    let url = "https://api.example.com/v1/things";
    let broken = "https://api.example.com/v1/things%0d%0aX-Evil:%201";
    for (url, header, verdict) in [
        (url, "X-Note: nothing", "allow"),
        (url, note.as_str(), "ask"),
        // A credential in this header is not a finding, because the proxy removes the header.
        (url, credential.as_str(), "allow"),
        (broken, "X-Note: nothing", "deny"),
    ] {
        let ask =
            ["policy", "check", "POST", url, "--agent", "hi", "--bottle", "wide", "--json", "-H", header];
        let answer = run(&home, &ask)?.json()?;
        assert_eq!(answer["verdict"], verdict, "{url} {header}: {answer}");
        assert!(!answer.to_string().contains(token), "{answer}");
    }
    Ok(())
}

/// Lines of an access log as the proxy writes them, and one line that the proxy did not write.
const RECORDED: &str = r#"{"event":"request","time":"2026-01-31T12:00:00.000Z","bottle":"one","host":"api.example.com","port":443,"method":"POST","path":"/v1/things","query":"x=1","verdict":"passed","status":200,"bytes":3,"milliseconds":1,"request":{"headers":[["x-note","hello"]],"body":"a"},"response":{"headers":[]}}
{"event":"request","host":"api.example.com","port":443,"method":"GET","path":"/v1/things","verdict":"passed","bytes":0,"milliseconds":0}
{"event":"request","host":"api.example.com","port":443,"method":"GET","path":"/v1/things","verdict":"passed","bytes":0,"milliseconds":0}
{"event":"request","host":"elsewhere.example.org","port":443,"method":"GET","path":"/","verdict":"refused","reason":"host-not-allowed","bytes":0,"milliseconds":0}
{"event":"request","host":"inner.example.com","port":443,"method":"GET","path":"/\u001b[2J","verdict":"refused","reason":"request-not-allowed","bytes":0,"milliseconds":0}
{"event":"request","host":"inner.example.com","port":443,"method":"POST","path":"/","verdict":"refused","reason":"secret-found","bytes":0,"milliseconds":0}
{"event":"request","host":"api.example.com","port":443,"method":"","path":"","verdict":"refused","reason":"port-not-allowed","bytes":0,"milliseconds":0}
{"event":"lost","lines":3}

{"host":"inner.example.com","method":"PUT","path":"/a","request":{"headers":[],"body":"token: glpat-Xk3Vw9QzR7tYp2LmNb5c"}}
"#;

#[test]
fn policy_test_replays_recorded_requests() -> Result<()> {
    let mut home = home()?;
    home.bottle("wide", WIDE)?;
    home.write("project/recorded", RECORDED)?;
    let ask = |file: &'static str| ["policy", "test", file, "--agent", "hi", "--bottle", "wide"];
    home.write("project/same", RECORDED.lines().next().unwrap_or_default())?;
    home.write("project/wrong", "{\"host\":\"a\",\"method\":\"GET\",\"path\":\"/\"}\nnonsense\n")?;
    snapshot!(transcripts(
        &home,
        &[
            &ask("recorded"),
            &[&ask("recorded")[..], &["--json"]].concat(),
            &ask("same"),
            &ask("wrong"),
            &ask("absent"),
        ],
    )?);
    Ok(())
}

/// Waits until `list` has exactly these columns STATUS and SERVICES for its only bottle.
fn wait_for_row(home: &TestHome, wanted: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let listed = run(home, &["list"])?.expect_code(0).stdout;
        if listed.trim_end().ends_with(wanted) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{wanted:?} is missing: {listed}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn list_shows_a_dead_sidecar_as_down() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--yes", "--detach", "--label", "one"])?.expect_code(0);
    wait_for_row(&home, "running (detached)\tegress")?;
    kill_role(&home, "__egress", "one")?;
    wait_for_row(&home, "running (detached)\tegress down")?;
    let listed = run(&home, &["list", "--json"])?.expect_code(0).json()?;
    let sidecars = serde_json::json!([{"name": "egress", "up": false}, {"name": "supervise", "up": true}]);
    assert_eq!(listed[0]["services"], sidecars);
    let overview = run(&home, &[])?.expect_code(0).stdout;
    ensure!(overview.contains("one (nap): running (detached), egress down"), "{overview}");
    // Without a keeper, nothing notices the end of a sidecar, so `list` looks for the processes.
    kill_keeper(&home, "one")?;
    wait_for_row(&home, "unkept\tegress down")?;
    kill_role(&home, "__bundle", "one")?;
    wait_for_row(&home, "unkept\tegress down, supervise down")
}

#[test]
fn json_output_is_one_document() -> Result<()> {
    let home = home()?;
    for arguments in [
        &["list", "active", "--json"][..],
        &["list", "agents", "--json"],
        &["list", "bottles", "--json"],
        &["info", "hi", "--json"],
        &["doctor", "--json"],
        &["cleanup", "--dry-run", "--json"],
    ] {
        run(&home, arguments)?.json()?;
    }
    Ok(())
}

#[test]
fn policy_check_shows_warnings_and_accepts_what_the_proxy_accepts() -> Result<()> {
    let mut home = home()?;
    let routes = "egress:\n  routes:\n  - {host: plain.example.com}\n  - {host: pass.example.com, pass_credentials: true}\n  \
                  - {host: random.example.com, dlp: {outbound_detectors: [entropy]}}\n";
    let plain = bottle("[echo, hi]");
    home.bottle("wide", &format!("{}{routes}---\n", plain.strip_suffix("---\n").unwrap_or_default()))?;
    let token = "glpat-Xk3Vw9QzR7tYp2LmNb5c";
    let (bearer, note) = (format!("Authorization: Bearer {token}"), format!("X-Note: {token}"));
    let key = ["AKIA", "Q7ZXW3RTYPLMNB5C"].concat();
    let hex = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let link = format!(
        "https://plain.example.com/x?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={key}%2F20261124%2Fus-east-1\
         %2Fs3%2Faws4_request&X-Amz-Signature={hex}"
    );
    let wrong = "X-Note: ghp_Q7zXw3RtYpLmNb5cVk9Hs2Jd8Fg4As000000";
    let random = "X-Note: Zk3Vw9QzR7tYp2LmNb5cHs2Jd8Fg4AsX1uTe6BvMoCiGqKxSyDfWaUhPjErLnQ0Zk3Vw9QzR7tYp2LmNb5cHs2Jd8Fg4AsX1uTe6B";
    let token_in_query = |host: &str| format!("https://{host}.example.com/x?access_token={token}");
    let (plain, pass) = ("https://plain.example.com/x", "https://pass.example.com/x");
    for (url, header, verdict, warning) in [
        (link.as_str(), "X-Note: nothing", "allow", None),
        (&format!("{plain}?a={key}"), "X-Note: nothing", "ask", None),
        (&token_in_query("plain"), "X-Note: nothing", "allow", None),
        (&token_in_query("pass"), "X-Note: nothing", "allow", None),
        (pass, &bearer, "allow", None),
        (pass, &note, "ask", None),
        (plain, wrong, "allow", Some("with a wrong checksum")),
        ("https://random.example.com/x", random, "allow", Some("as random as a key")),
    ] {
        let ask = ["policy", "check", "GET", url, "--agent", "hi", "--bottle", "wide", "-H", header];
        let answer = run(&home, &[&ask[..], &["--json"]].concat())?.json()?;
        assert_eq!(answer["verdict"], verdict, "{url} {header}: {answer}");
        let shown = run(&home, &ask)?.stdout;
        match warning {
            None => {
                assert!(answer.get("warnings").is_none() && !shown.contains("warning"), "{answer}\n{shown}")
            }
            Some(words) => {
                assert!(answer["warnings"][0].as_str().is_some_and(|text| text.contains(words)), "{answer}");
                assert!(shown.contains("  warning ") && shown.contains(words), "{shown}");
            }
        }
    }
    Ok(())
}

#[test]
fn policy_check_decides_forge_requests_as_the_proxy_does() -> Result<()> {
    let mut home = TestHome::new()?;
    let text = "---\nbackend: fake\nagent_provider: {template: command, command: [sleep, '600']}\n\
                egress: {routes: [{host: api.github.com}]}\ngit-gate:\n  repos:\n    \
                tool: {url: 'git@github.com:team/tool.git', host_key: ssh-ed25519 AAAA, key: {provider: static, path: ~/key}}\n---\n";
    home.bottle("forge", text)?.agent("forge", "---\nbottle: forge\n---\n")?;
    let check = |method, path| {
        let url = format!("https://api.github.com{path}");
        run(&home, &["policy", "check", method, &url, "--agent", "forge", "--json"])?.json()
    };
    let refused = check("PUT", "/repos/team/tool/contents/a")?;
    assert_eq!(refused["reason"], "use-git-gate", "{refused}");
    assert!(refused["sentence"].as_str().is_some_and(|text| text.contains("Push instead")), "{refused}");
    assert_eq!(check("POST", "/repos/team/tool/issues")?["verdict"], "allow");
    let shown = run(&home, &["start", "forge", "--dry-run"])?.expect_code(0);
    assert!(shown.stdout.contains("api.github.com allows writes to the forge"), "{}", shown.stdout);
    Ok(())
}
