//! Tests of every reason for which a selection is refused, with its message and its hint.

use super::directories::{Directories, EMPTY};
use super::name;
use crate::resolve::{ResolveError, lineage};

/// Formats the name of the case, the message, and the hint if there is one.
fn shown(case: &str, directories: &Directories, error: &ResolveError) -> String {
    let hint = error.hint().map(|hint| format!("\n  {hint}")).unwrap_or_default();
    assert_eq!(error.to_string(), format!("{}{hint}", error.message()), "{case}");
    directories.relative(&format!("{case}: {error}\n"))
}

/// Resolves the agent `coder` with the bottles `picks`, and returns the error. Panics if resolving succeeds. `bottles`
/// contains the name and the frontmatter of each manifest.
fn refused(case: &str, picks: &str, bottles: &[(&str, &str)]) -> String {
    let bottles = bottles.iter().map(|(name, keys)| {
        let name = format!("home/bottles/{name}.md");
        (name, format!("---\n{keys}\n---\n"))
    });
    let mut files: Vec<(String, String)> = bottles.collect();
    files.push(("home/agents/coder.md".to_owned(), String::new()));
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let directories = Directories::with(&files);
    let error = directories.resolve(&format!("coder {picks}")).expect_err(case);
    shown(case, &directories, &error)
}

#[test]
fn refuses_unknown_names_and_no_bottle() {
    let directories = Directories::with(&[
        ("home/agents/coder.md", ""),
        ("home/agents/lost.md", "---\nbottle: [base, nowhere]\n---\n"),
        ("home/agents/skilled.md", "---\nskills: [review]\n---\n"),
        ("home/agents/broken.md", "---\nbottle: [base\n---\n"),
        ("home/bottles/base.md", EMPTY),
        ("home/bottles/child.md", "---\nextends:\n  - bsae\n---\n"),
    ]);
    let cases = [
        ("an agent like another", "codre base"),
        ("an agent like none", "xyzzyx base"),
        ("a bottle like another", "coder basee"),
        ("a bottle like none", "coder xyzzyx"),
        ("a parent", "coder child"),
        ("an agent's bottle", "lost"),
        ("no bottle", "coder"),
        ("a skill", "skilled base"),
        ("a file that is not YAML", "broken base"),
    ];
    let cases =
        cases.map(|(case, picks)| shown(case, &directories, &directories.resolve(picks).expect_err(case)));
    insta::assert_snapshot!(cases.concat(), @r"
    an agent like another: no agent is named `codre`
      did you mean `coder`? there are `broken`, `claude`, `coder`, `codex`, `idle`, `lost`, `mini`, `pi`, `probe`, `shell` and `skilled`
    an agent like none: no agent is named `xyzzyx`
      there are `broken`, `claude`, `coder`, `codex`, `idle`, `lost`, `mini`, `pi`, `probe`, `shell` and `skilled`
    a bottle like another: no bottle is named `basee`
      did you mean `base`? there are `base`, `child`, `claude`, `codex`, `dev`, `github-read`, `idle`, `mini`, `offline`, `pi`, `probe` and `shell`
    a bottle like none: no bottle is named `xyzzyx`
      there are `base`, `child`, `claude`, `codex`, `dev`, `github-read`, `idle`, `mini`, `offline`, `pi`, `probe` and `shell`
    a parent: home/bottles/child.md:3:5: no bottle is named `bsae`
      did you mean `base`? there are `base`, `child`, `claude`, `codex`, `dev`, `github-read`, `idle`, `mini`, `offline`, `pi`, `probe` and `shell`
    an agent's bottle: home/agents/lost.md:2:16: no bottle is named `nowhere`
      there are `base`, `child`, `claude`, `codex`, `dev`, `github-read`, `idle`, `mini`, `offline`, `pi`, `probe` and `shell`
    no bottle: no bottle was chosen, and the agent `coder` names none
      choose with `--bottle NAME`, or write `bottle: NAME` into the agent; there are `base`, `child`, `claude`, `codex`, `dev`, `github-read`, `idle`, `mini`, `offline`, `pi`, `probe` and `shell`
    a skill: home/agents/skilled.md:2:10: the skill `review` does not exist: neither home/skills/review nor user/.claude/skills/review
    a file that is not YAML: home/agents/broken.md:2:9: cannot parse the YAML: unclosed bracket '['
      close the bracket, or put the text in quotes if it begins with one
    ");
}

#[test]
fn refuses_graphs_with_a_cycle_or_too_many_bottles() {
    let many: Vec<String> = (0..=1_000).map(|index| format!("b{index}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
    let picks: Vec<&str> = many.iter().map(|(name, _)| *name).collect();
    let cases = [
        refused("itself", "a", &[("a", "extends: a")]),
        refused("a circle", "a", &[("a", "extends: b"), ("b", "env: {}\nextends: [c]"), ("c", "extends: b")]),
        refused("too many", &picks.join(" "), &many),
    ];
    insta::assert_snapshot!(cases.concat(), @r"
    itself: home/bottles/a.md:2:10: the bottle `a` extends itself
    a circle: home/bottles/c.md:2:10: bottles extend each other in a circle: b → c → b
    too many: the chosen bottles: more than 1000 bottles are combined
    ");
}

#[test]
fn refuses_repositories_and_routes_that_do_not_fit() {
    let url = "git-gate: {repos: {tool: {url: 'git@git.example.com:tool.git'}}}";
    let key = "extends: url\ngit-gate: {repos: {tool: {key: {provider: token, token_ref: T}}}}";
    let cases = [
        refused("no key", "url", &[("url", url)]),
        refused("no URL", "key", &[("key", key.trim_start_matches("extends: url\n"))]),
        refused("a token for ssh", "key", &[("url", url), ("key", key)]),
        refused(
            "two routes for a host",
            "child other",
            &[
                ("base", "egress: {routes: [{host: a.example.com}]}"),
                ("child", "extends: base"),
                ("other", "egress:\n  routes:\n    - {host: A.example.com, private: true}"),
            ],
        ),
    ];
    insta::assert_snapshot!(cases.concat(), @r"
    no key: home/bottles/url.md:2:26: `git-gate.repos.tool` lacks `key`, and so do the bottles it is combined with
    no URL: home/bottles/key.md:2:26: `git-gate.repos.tool` lacks `url`, and so do the bottles it is combined with
    a token for ssh: home/bottles/key.md:3:26: `git-gate.repos.tool`: the key (at home/bottles/key.md:3) does not fit the URL (at home/bottles/url.md:2 via key)
      an https URL needs the provider `token`, an ssh URL `static`, `gitea` or `github`
    two routes for a host: home/bottles/other.md:4:7: the host `a.example.com` has another route already, at home/bottles/base.md:2 via child
      a host has one route: make the two equal, or keep one of them
    ");
}

#[test]
fn refuses_what_the_provider_route_does_not_allow() {
    let long = format!("auth_token: file:/{}", "x".repeat(3_000));
    let cases = [
        ("a second route", "egress: {routes: [{host: api.anthropic.com}]}".to_owned()),
        (
            "a second route for a template",
            "agent_provider: {template: codex}\negress: {routes: [{host: api.openai.com}]}".to_owned(),
        ),
        ("more requests", "agent_provider:\n  route: {matches: [{methods: [GET]}]}".to_owned()),
        ("an address without a port", "agent_provider:\n  route: {connect_to: a.example.com}".to_owned()),
        (
            "a setting of the provider",
            "agent_provider: {template: pi, settings: {provider: mine}}".to_owned(),
        ),
        ("an invalid route", format!("agent_provider: {{template: codex, {long}}}")),
        ("an invalid route of the default template", format!("agent_provider: {{{long}}}")),
        (
            "an invalid route that is narrowed",
            format!("agent_provider: {{{long}, route: {{connect_to: 'a.example.com:443'}}}}"),
        ),
    ];
    let cases = cases.map(|(case, keys)| refused(case, "mine", &[("mine", &keys)]));
    insta::assert_snapshot!(cases.concat(), @r"
    a second route: home/bottles/mine.md:2:19: `api.anthropic.com` is the host of the template `claude`, which has a built-in route
      remove the route; restrict the built-in one with `agent_provider.route`, set its credential with `agent_provider.auth_token`
    a second route for a template: home/bottles/mine.md:3:19: `api.openai.com` is the host of the template `codex`, which has a built-in route
      remove the route; restrict the built-in one with `agent_provider.route`, set its credential with `agent_provider.auth_token`
    more requests: home/bottles/mine.md:3:20: `agent_provider.route`: route `api.anthropic.com`, `matches`: this allows more than the provider's own route; `extend: true` beside `matches` adds it
    an address without a port: home/bottles/mine.md:3:23: `agent_provider.route`: route `api.anthropic.com`, `connect_to`: write `host:PORT`, `name:PORT` or an address with its port
    a setting of the provider: home/bottles/mine.md:2:53: `agent_provider.settings.base_url` is missing: this model provider has no default URL
      for example `base_url: https://models.example.com/v1`, or `http://localhost:11434/v1` for a server on this machine
    an invalid route: home/bottles/mine.md:2:28: route `api.openai.com`, `auth.token_ref`: the value is longer than 2048 bytes
    an invalid route of the default template: the chosen bottles: route `api.anthropic.com`, `auth.token_ref`: the value is longer than 2048 bytes
    an invalid route that is narrowed: home/bottles/mine.md:2:3045: `agent_provider.route`: route `api.anthropic.com`, `auth.token_ref`: the value is longer than 2048 bytes
    ");
}

#[test]
fn orders_a_lineage_and_refuses_it_like_a_selection() {
    let directories = Directories::with(&[
        ("home/bottles/base.md", EMPTY),
        ("home/bottles/left.md", "---\nextends: base\n---\n"),
        ("home/bottles/child.md", "---\nextends: [left, base]\n---\n"),
        ("home/bottles/broken.md", "---\nextends: [base, broken]\n---\n"),
    ]);
    let lineage = |bottle: &str| lineage(&name(bottle), &directories.manifests());
    assert_eq!(lineage("child"), Ok(["base", "left", "child"].map(name).to_vec()));
    let cases = ["broken", "chidl"].map(|case| shown(case, &directories, &lineage(case).expect_err(case)));
    insta::assert_snapshot!(cases.concat(), @r"
    broken: home/bottles/broken.md:2:17: the bottle `broken` extends itself
    chidl: no bottle is named `chidl`
      did you mean `child`? there are `base`, `broken`, `child`, `claude`, `codex`, `dev`, `github-read`, `idle`, `left`, `mini`, `offline`, `pi`, `probe` and `shell`
    ");
}
