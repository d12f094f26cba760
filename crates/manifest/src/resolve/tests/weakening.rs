//! Tests of every setting that weakens a bottle, with the position of the setting.

use super::directories::Directories;
use crate::resolve::weakening_settings;

/// Formats each weakening setting of a bottle as `HOST SENTENCE, at ORIGIN`.
fn shown(keys: &str) -> String {
    let bottle = format!("---\n{keys}\n---\n");
    let directories = Directories::with(&[("home/agents/coder.md", ""), ("home/bottles/mine.md", &bottle)]);
    let resolved = directories.resolve("coder mine").expect(keys);
    let lines = weakening_settings(&resolved.manifest).into_iter().map(|weakness| {
        let sentence = weakness.sentence();
        format!("{} {sentence}, at {}\n", weakness.host, directories.relative(&weakness.origin.to_string()))
    });
    format!("{keys}\n{}\n", lines.collect::<String>())
}

#[test]
fn lists_each_weakening_setting_with_its_origin() {
    let github =
        "git-gate: {repos: {tool: {url: 'git@github.com:a/b.git', key: {provider: static, path: /key}}}}";
    let cases = [
        "resources: {nested: true}",
        "egress: {routes: [{host: a.example, inspect: false}]}",
        "egress: {routes: [{host: a.example, private: true}]}",
        "egress: {routes: [{host: pypi.ogr}]}",
        "egress: {routes: [{host: a.example, pass_credentials: true}]}",
        "egress: {routes: [{host: a.example, dlp: {outbound_detectors: false}}]}",
        "egress: {routes: [{host: a.example, dlp: {inbound_detectors: []}}]}",
        // For the provider route, the reported position is that of the key that limits the route.
        "agent_provider:\n  template: codex\n  route: {dlp: {outbound_detectors: [], inbound_detectors: false}}",
        // None of these settings weakens the bottle.
        "resources: {nested: false}\negress: {routes: [{host: a.example, dlp: {inbound_detectors: [known_secrets]}}]}",
        // Resources are listed first, and routes to a forge last.
        &format!(
            "{github}\nresources: {{nested: true}}\n\
             egress: {{routes: [{{host: uploads.github.com}}, {{host: api.github.com, matches: [{{methods: [GET]}}]}}, \
             {{host: github.com, inspect: false}}]}}"
        ),
    ];
    insta::assert_snapshot!(cases.map(shown).concat(), @r"
    resources: {nested: true}
    resources.nested lets the agent create namespaces and mounts, which exposes more of the kernel (`nested: true`), at home/bottles/mine.md:2

    egress: {routes: [{host: a.example, inspect: false}]}
    a.example is not inspected: its TLS traffic is tunnelled without matching or scanning (`inspect: false`), at home/bottles/mine.md:2

    egress: {routes: [{host: a.example, private: true}]}
    a.example may resolve to private addresses, this machine's network included (`private: true`), at home/bottles/mine.md:2

    egress: {routes: [{host: pypi.ogr}]}
    pypi.ogr looks like a typing error of `pypi.org`: another server answers, at home/bottles/mine.md:2

    egress: {routes: [{host: a.example, pass_credentials: true}]}
    a.example accepts any credentials that the agent sends, an attacker's included (`pass_credentials: true`), at home/bottles/mine.md:2

    egress: {routes: [{host: a.example, dlp: {outbound_detectors: false}}]}
    a.example is not scanned for secrets in outbound data (`dlp.outbound_detectors`), at home/bottles/mine.md:2

    egress: {routes: [{host: a.example, dlp: {inbound_detectors: []}}]}
    a.example is not scanned for inbound data (`dlp.inbound_detectors`), at home/bottles/mine.md:2

    agent_provider:
      template: codex
      route: {dlp: {outbound_detectors: [], inbound_detectors: false}}
    api.openai.com is not scanned for secrets in outbound data (`dlp.outbound_detectors`), at home/bottles/mine.md:4
    api.openai.com is not scanned for inbound data (`dlp.inbound_detectors`), at home/bottles/mine.md:4

    resources: {nested: false}
    egress: {routes: [{host: a.example, dlp: {inbound_detectors: [known_secrets]}}]}

    git-gate: {repos: {tool: {url: 'git@github.com:a/b.git', key: {provider: static, path: /key}}}}
    resources: {nested: true}
    egress: {routes: [{host: uploads.github.com}, {host: api.github.com, matches: [{methods: [GET]}]}, {host: github.com, inspect: false}]}
    resources.nested lets the agent create namespaces and mounts, which exposes more of the kernel (`nested: true`), at home/bottles/mine.md:3
    github.com is not inspected: its TLS traffic is tunnelled without matching or scanning (`inspect: false`), at home/bottles/mine.md:4
    uploads.github.com allows writes to the forge of a repository of the git gate: its API requests are not checked like pushes, and only `matches` restricts their content (restrict it to GET), at home/bottles/mine.md:4
    github.com allows writes to the forge of a repository of the git gate: its API requests are not checked like pushes, and only `matches` restricts their content (restrict it to GET), at home/bottles/mine.md:4
    ");
}
