//! Tests of the rendered manifest: every key, with every kind of origin.

use super::directories::{Directories, EMPTY};
use crate::resolve::comparable;

/// An agent manifest without a prompt.
const CODER: (&str, &str) = ("home/agents/coder.md", "");

/// Returns the lines of one key of the rendered manifest.
fn section(text: &str, key: &str) -> String {
    let start = text.find(&format!("\n{key}:")).expect("the key") + 1;
    let rest = &text[start..];
    let end = rest.match_indices('\n').find(|(at, _)| rest[at + 1..].starts_with(char::is_alphabetic));
    rest[..end.map_or(rest.len(), |(at, _)| at + 1)].to_owned()
}

#[test]
fn explains_the_defaults_of_an_empty_bottle() {
    let directories = Directories::with(&[CODER, ("home/bottles/mine.md", EMPTY)]);
    insta::assert_snapshot!(directories.explain("coder mine"), @r"
    agent: coder                       # home/agents/coder.md
    prompt: 0 bytes
    skills: []                         # default
    bottles:
    - mine
    layers:
      - mine                           # home/bottles/mine.md
    env: {}                            # default
    agent_provider:
      template: claude                 # default
      forward_host_credentials: false  # default
      settings:
        startup_args: []               # default
        models: []                     # default
    git-gate:
      repos: {}
    egress:
      log: 1                           # default
      routes:
        - host: api.anthropic.com      # default
          auth:
            scheme: header
            header: x-api-key
            token_ref: asked on the terminal
          matches:
          - paths:
            - type: exact
              value: /v1/messages
            - type: exact
              value: /v1/messages/count_tokens
            methods:
            - POST
          - paths:
            - type: exact
              value: /api/claude_code/settings
            - type: exact
              value: /api/claude_code/policy_limits
            methods:
            - GET
          websocket: refuse
          provider: true
    supervise: true                    # default
    backend: any                       # default
    resources:
      pids: 4096                       # default
      nested: false                    # default
    ");
}

#[test]
fn explains_every_key_of_one_file() {
    let agent = "---\nbottle: full\nskills: [review, deploy]\ngit-gate: {user: {email: agent@example.com}}\n---\nWork.\n";
    let bottle = r#"---
env:
  LITERAL: "8080"
  HOST: $HOST_NAME
  BRACED: ${OTHER}
  PROMPTED: "?Token"
agent_provider:
  template: pi
  dockerfile: images/pi.Dockerfile
  auth_token: file:~/.key
  route:
    matches: [{methods: [POST], paths: [{type: exact, value: /v1/messages}]}]
    connect_to: 10.0.0.5:8443
    dlp: {outbound_on_match: block}
  settings:
    startup_args: [--quiet]
    provider: corporate
    base_url: https://models.example.com
    api: anthropic-messages
    api_key: not-a-real-key
    api_key_env: PI_KEY
    models: [large, small]
    max_tokens_field: max_tokens
    supports_developer_role: false
    supports_reasoning_effort: true
git-gate:
  user: {name: Coder, email: bottle@example.com}
  repos:
    deployed:
      url: git@github.com:team/deployed.git
      key: {provider: github, token_ref: "cmd:pass show github"}
    full:
      url: ssh://git@git.example.com:2222/team/full.git
      key: {provider: gitea, api_url: "https://git.example.com/api/v1", token_ref: GITEA, read_only: true}
      host_key: ssh-ed25519 AAAA
      alias: work
      refs: {allow: [refs/heads/x/*], deny: [refs/heads/x/y], force: true, delete: true, tags: true}
      on_match: block
      stale_ok: true
    keyed:
      url: git@git.example.com:team/keyed.git
      key: {provider: static, path: ~/.ssh/id_ed25519}
      refs: {allow: []}
    web:
      url: https://git.example.com/team/web.git
      key: {provider: token, token_ref: TOKEN}
egress:
  log: 2
  ca_bundle: certs/corporate.pem
  upstream_proxy: ${PROXY}
  routes:
    - host: API.example.com
      ports: [8443, 443]
      auth: {scheme: Bearer, token_ref: API_KEY}
      matches: [{methods: [get], headers: [{name: Accept, value: text/plain}]}]
      websocket: refuse
    - {host: "*.example.org", git: {fetch: true}}
supervise: false
backend: linux
resources: {cpus: 1.5, memory: 4GiB, pids: 512, disk: 20G, nested: true}
---
"#;
    let directories = Directories::with(&[
        ("home/agents/coder.md", agent),
        ("home/bottles/full.md", bottle),
        ("home/skills/review/SKILL.md", "Review.\n"),
        ("user/.claude/skills/deploy/SKILL.md", "Deploy.\n"),
        ("user/.claude/skills/deploy/lib/steps.txt", "one\ntwo\n"),
    ]);
    insta::assert_snapshot!(directories.explain("coder"), @r#"
    agent: coder                                             # home/agents/coder.md
    prompt: 6 bytes
    skills:
      - review (1 file, 8 bytes)                             # home/agents/coder.md:3
      - deploy (2 files, 16 bytes)                           # home/agents/coder.md:3
    bottles:
    - full
    layers:
      - full                                                 # home/bottles/full.md
    env:
      BRACED: $OTHER                                         # home/bottles/full.md:5
      HOST: $HOST_NAME                                       # home/bottles/full.md:4
      LITERAL: "8080"                                        # home/bottles/full.md:3
      PROMPTED: ?Token                                       # home/bottles/full.md:6
    agent_provider:
      template: pi                                           # home/bottles/full.md:8
      dockerfile: images/pi.Dockerfile                       # home/bottles/full.md:9
      auth_token: file:~/.key                                # home/bottles/full.md:10
      forward_host_credentials: false                        # default
      route:                                                 # home/bottles/full.md:12
        matches:
        - paths:
          - type: exact
            value: /v1/messages
          methods:
          - POST
        connect_to: 10.0.0.5:8443
        dlp:
          outbound_on_match: block
      settings:
        startup_args:                                        # home/bottles/full.md:16
        - --quiet
        provider: corporate                                  # home/bottles/full.md:17
        base_url: https://models.example.com                 # home/bottles/full.md:18
        api: anthropic-messages                              # home/bottles/full.md:19
        api_key: "[hidden]"                                  # home/bottles/full.md:20
        api_key_env: PI_KEY                                  # home/bottles/full.md:21
        models:                                              # home/bottles/full.md:22
        - large
        - small
        max_tokens_field: max_tokens                         # home/bottles/full.md:23
        supports_developer_role: false                       # home/bottles/full.md:24
        supports_reasoning_effort: true                      # home/bottles/full.md:25
    git-gate:
      user:
        name: Coder                                          # home/bottles/full.md:27
        email: agent@example.com                             # home/agents/coder.md:4
      repos:
        deployed:
          url: git@github.com:team/deployed.git              # home/bottles/full.md:30
          key:                                               # home/bottles/full.md:31
            provider: github
            token_ref: cmd:pass show github
            read_only: false
          refs:                                              # default
            allow: any branch except the upstream's default
            deny: []
            force: false
            delete: false
            tags: false
          on_match: supervise                                # default
          stale_ok: false                                    # default
        full:
          url: ssh://git@git.example.com:2222/team/full.git  # home/bottles/full.md:33
          key:                                               # home/bottles/full.md:34
            provider: gitea
            api_url: https://git.example.com/api/v1
            token_ref: env:GITEA
            read_only: true
          host_key: ssh-ed25519 AAAA                         # home/bottles/full.md:35
          alias: work                                        # home/bottles/full.md:36
          refs:                                              # home/bottles/full.md:37
            allow:
            - refs/heads/x/*
            deny:
            - refs/heads/x/y
            force: true
            delete: true
            tags: true
          on_match: block                                    # home/bottles/full.md:38
          stale_ok: true                                     # home/bottles/full.md:39
        keyed:
          url: git@git.example.com:team/keyed.git            # home/bottles/full.md:41
          key:                                               # home/bottles/full.md:42
            provider: static
            path: ~/.ssh/id_ed25519
          refs:                                              # home/bottles/full.md:43
            allow: []
            deny: []
            force: false
            delete: false
            tags: false
          on_match: supervise                                # default
          stale_ok: false                                    # default
        web:
          url: https://git.example.com/team/web.git          # home/bottles/full.md:45
          key:                                               # home/bottles/full.md:46
            provider: token
            token_ref: env:TOKEN
          refs:                                              # default
            allow: any branch except the upstream's default
            deny: []
            force: false
            delete: false
            tags: false
          on_match: supervise                                # default
          stale_ok: false                                    # default
    egress:
      log: 2                                                 # home/bottles/full.md:48
      routes:
        - host: models.example.com                           # home/bottles/full.md:8
          auth:
            scheme: header
            header: x-api-key
            token_ref: file:~/.key
          matches:
          - paths:
            - type: exact
              value: /v1/messages
            methods:
            - POST
          connect_to: 10.0.0.5:8443
          websocket: refuse
          dlp:
            outbound_on_match: block
          provider: true
        - host: api.example.com                              # home/bottles/full.md:52
          ports:
          - 443
          - 8443
          auth:
            scheme: Bearer
            token_ref: env:API_KEY
          matches:
          - methods:
            - GET
            headers:
            - name: accept
              type: exact
              value: text/plain
          websocket: refuse
        - host: "*.example.org"                              # home/bottles/full.md:57
          git:
            fetch: true
      ca_bundle: certs/corporate.pem                         # home/bottles/full.md:49
      upstream_proxy: $PROXY                                 # home/bottles/full.md:50
    supervise: false                                         # home/bottles/full.md:58
    backend: linux                                           # home/bottles/full.md:59
    resources:
      cpus: 1.5                                              # home/bottles/full.md:60
      memory: 4GiB                                           # home/bottles/full.md:60
      pids: 512                                              # home/bottles/full.md:60
      disk: 20GiB                                            # home/bottles/full.md:60
      nested: true                                           # home/bottles/full.md:60
    "#);
}

/// A value comes from the last layer that sets it. The chain of `extends` to this layer's file is shown.
#[test]
fn explains_the_layer_of_each_value() {
    let base = "---\nenv: {A: base, B: base}\nagent_provider: {template: codex, auth_token: KEY}\nbackend: docker\n\
        git-gate:\n  user: {name: Base, email: base@example.com}\n  repos:\n    tool:\n      \
        url: git@git.example.com:a/tool.git\n      key: {provider: static, path: /keys/a}\n\
        egress:\n  log: 2\n  routes: [{host: base.example.com}]\nresources: {pids: 10, memory: 1GiB}\n---\n";
    let middle = "---\nextends: base\nenv: {B: middle}\n\
        git-gate: {repos: {tool: {alias: forge, refs: {tags: true}}}}\n\
        egress: {routes: [{host: middle.example.com}, {host: base.example.com}]}\n---\n";
    let child = "---\nextends: [middle, offline]\nenv: {C: child}\nsupervise: true\n\
        agent_provider: {template: command, command: [agent, '{task}']}\n\
        git-gate: {user: {email: child@example.com}}\nresources: {pids: 20}\n---\n";
    let local = "---\nenv: {C: local}\negress: {log: 1}\n\
        git-gate: {repos: {tool: {key: {provider: static, path: /keys/local}, stale_ok: true}}}\n---\n";
    let directories = Directories::with(&[
        CODER,
        ("home/bottles/base.md", base),
        ("home/bottles/middle.md", middle),
        ("home/bottles/child.md", child),
        ("home/bottles/local.md", local),
    ]);
    insta::assert_snapshot!(directories.explain("coder child local child"), @r#"
    agent: coder                               # home/agents/coder.md
    prompt: 0 bytes
    skills: []                                 # default
    bottles:
    - child
    - local
    layers:
      - base                                   # home/bottles/base.md
      - middle                                 # home/bottles/middle.md
      - offline                                # shipped:bottles/offline.md
      - child                                  # home/bottles/child.md
      - local                                  # home/bottles/local.md
    env:
      A: base                                  # home/bottles/base.md:2 via child → middle
      B: middle                                # home/bottles/middle.md:3 via child
      C: local                                 # home/bottles/local.md:2
    agent_provider:
      template: command                        # home/bottles/child.md:5
      command:                                 # home/bottles/child.md:5
      - agent
      - "{task}"
      forward_host_credentials: false          # default
      settings:
        startup_args: []                       # default
        models: []                             # default
    git-gate:
      user:
        name: Base                             # home/bottles/base.md:6 via child → middle
        email: child@example.com               # home/bottles/child.md:6
      repos:
        tool:
          url: git@git.example.com:a/tool.git  # home/bottles/base.md:9 via child → middle
          key:                                 # home/bottles/local.md:4
            provider: static
            path: /keys/local
          alias: forge                         # home/bottles/middle.md:4 via child
          refs:                                # home/bottles/middle.md:4 via child
            allow: any branch except the upstream's default
            deny: []
            force: false
            delete: false
            tags: true
          on_match: supervise                  # default
          stale_ok: true                       # home/bottles/local.md:4
    egress:
      log: 1                                   # home/bottles/local.md:3
      routes:
        - host: base.example.com               # home/bottles/base.md:13 via child → middle
        - host: middle.example.com             # home/bottles/middle.md:5 via child
    supervise: true                            # home/bottles/child.md:4
    backend: docker                            # home/bottles/base.md:4 via child → middle
    resources:
      memory: 1GiB                             # home/bottles/base.md:14 via child → middle
      pids: 20                                 # home/bottles/child.md:7
      nested: false                            # default
    "#);
}

/// `repos: {}` in a manifest removes the repositories of the manifests that it extends. It does not remove the
/// repositories of another selected bottle.
#[test]
fn explains_removed_repositories() {
    let repo = |name: &str| {
        let key = "{provider: static, path: /key}";
        format!(
            "---\ngit-gate: {{repos: {{{name}: {{url: 'git@git.example.com:{name}.git', key: {key}}}}}}}\n---\n"
        )
    };
    let (base, other) = (repo("base"), repo("other"));
    let directories = Directories::with(&[
        CODER,
        ("home/bottles/base.md", &base),
        ("home/bottles/other.md", &other),
        ("home/bottles/none.md", "---\nextends: base\ngit-gate: {repos: {}}\n---\n"),
    ]);
    let shown =
        ["coder none", "coder other none"].map(|picks| section(&directories.explain(picks), "git-gate"));
    insta::assert_snapshot!(shown.join("---\n"), @r"
    git-gate:
      repos: {}
    ---
    git-gate:
      repos:
        other:
          url: git@git.example.com:other.git  # home/bottles/other.md:2
          key:                                # home/bottles/other.md:2
            provider: static
            path: /key
          refs:                               # default
            allow: any branch except the upstream's default
            deny: []
            force: false
            delete: false
            tags: false
          on_match: supervise                 # default
          stale_ok: false                     # default
    ");
}

#[test]
fn explains_the_route_of_each_provider() {
    let shown = [
        "{auth_token: KEY}",
        "{template: claude, route: {matches: [{methods: [POST], paths: [{type: exact, value: /v1/messages}]}]}}",
        "{template: codex, route: {connect_to: 'proxy.example.com:443', dlp: {outbound_detectors: false}}}",
        "{template: codex, forward_host_credentials: true}",
        "{template: pi, settings: {provider: openai}}",
        "{template: pi, settings: {provider: local, base_url: 'http://localhost:11434/v1', models: [small]}}",
        "{template: command, command: [agent]}",
    ]
    .map(|provider| {
        let bottle = format!("---\n# {provider}\nagent_provider: {provider}\n---\n");
        let text = Directories::with(&[CODER, ("home/bottles/mine.md", &bottle)]).explain("coder mine");
        format!("{provider}\n{}", section(&text, "egress"))
    });
    insta::assert_snapshot!(shown.join("\n"), @r"
    {auth_token: KEY}
    egress:
      log: 1                           # default
      routes:
        - host: api.anthropic.com      # default
          auth:
            scheme: header
            header: x-api-key
            token_ref: env:KEY
          matches:
          - paths:
            - type: exact
              value: /v1/messages
            - type: exact
              value: /v1/messages/count_tokens
            methods:
            - POST
          - paths:
            - type: exact
              value: /api/claude_code/settings
            - type: exact
              value: /api/claude_code/policy_limits
            methods:
            - GET
          websocket: refuse
          provider: true

    {template: claude, route: {matches: [{methods: [POST], paths: [{type: exact, value: /v1/messages}]}]}}
    egress:
      log: 1                           # default
      routes:
        - host: api.anthropic.com      # home/bottles/mine.md:3
          auth:
            scheme: header
            header: x-api-key
            token_ref: asked on the terminal
          matches:
          - paths:
            - type: exact
              value: /v1/messages
            methods:
            - POST
          websocket: refuse
          provider: true

    {template: codex, route: {connect_to: 'proxy.example.com:443', dlp: {outbound_detectors: false}}}
    egress:
      log: 1                           # default
      routes:
        - host: api.openai.com         # home/bottles/mine.md:3
          auth:
            scheme: Bearer
            token_ref: asked on the terminal
          matches:
          - paths:
            - type: exact
              value: /v1/responses
            - type: exact
              value: /v1/responses/compact
            methods:
            - POST
          connect_to: proxy.example.com:443
          websocket: refuse
          dlp:
            outbound_detectors: false
          provider: true

    {template: codex, forward_host_credentials: true}
    egress:
      log: 1                          # default
      routes:
        - host: chatgpt.com           # home/bottles/mine.md:3
          auth:
            scheme: Bearer
            token_ref: codex's own login
          matches:
          - paths:
            - type: exact
              value: /backend-api/codex/responses
            - type: exact
              value: /backend-api/codex/responses/compact
            methods:
            - POST
          - paths:
            - type: exact
              value: /backend-api/codex/models
            - type: exact
              value: /backend-api/wham/accounts/check
            - type: exact
              value: /backend-api/wham/usage
            methods:
            - GET
          websocket: refuse
          provider: true

    {template: pi, settings: {provider: openai}}
    egress:
      log: 1                           # default
      routes:
        - host: api.openai.com         # home/bottles/mine.md:3
          auth:
            scheme: Bearer
            token_ref: asked on the terminal
          matches:
          - paths:
            - type: exact
              value: /v1/responses
            methods:
            - POST
          websocket: refuse
          provider: true

    {template: pi, settings: {provider: local, base_url: 'http://localhost:11434/v1', models: [small]}}
    egress:
      log: 1                                 # default
      routes:
        - host: host                         # home/bottles/mine.md:3
          ports:
          - 80
          matches:
          - paths:
            - type: exact
              value: /v1/chat/completions
            methods:
            - POST
          connect_to: host:11434
          websocket: refuse
          provider: true

    {template: command, command: [agent]}
    egress:
      log: 1                           # default
      routes: []                       # default
    ");
}

/// A long line does not move the column of the comments. Control characters are shown escaped.
#[test]
fn explains_long_and_hostile_values() {
    let bottle = "---\nenv:\n  LONG: a value that is a good deal longer than the column of the origins\n  \
        ESCAPE: \"\\e[2J\\u202e\"\nagent_provider: {template: command, command: [agent]}\n---\n";
    let directories = Directories::with(&[CODER, ("home/bottles/mine.md", bottle)]);
    insta::assert_snapshot!(section(&directories.explain("coder mine"), "env"), @r#"
    env:
      ESCAPE: "\e[2J\u{202e}"          # home/bottles/mine.md:4
      LONG: a value that is a good deal longer than the column of the origins  # home/bottles/mine.md:3
    "#);
}

/// The comparable form contains the full prompt instead of its size, and no comments.
#[test]
fn compares_values_and_the_prompt_without_origins() {
    let bottle = "---\nenv: {A: b}\nagent_provider: {template: command, command: [agent]}\n---\n";
    let prompt = "Work \u{1b}[31mhard.\n";
    let directories =
        Directories::with(&[("home/agents/coder.md", prompt), ("home/bottles/mine.md", bottle)]);
    let resolved = directories.resolve("coder mine").expect("resolved");
    insta::assert_snapshot!(directories.relative(&comparable(&resolved.manifest)), @r"
    agent: coder
    prompt: 16 bytes
    skills: []
    bottles:
    - mine
    layers:
      - mine
    env:
      A: b
    agent_provider:
      template: command
      command:
      - agent
      forward_host_credentials: false
      settings:
        startup_args: []
        models: []
    git-gate:
      repos: {}
    egress:
      log: 1
      routes: []
    supervise: true
    backend: any
    resources:
      pids: 4096
      nested: false
    ---
    Work \u{1b}[31mhard.
    ");
}
