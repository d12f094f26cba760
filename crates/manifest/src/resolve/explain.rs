//! Renders a resolved manifest for the user as YAML, with a comment that says where each value comes from.
//!
//! `info --explain`, the preflight and `--dry-run` show this text. The text is not a valid manifest: absent
//! values without a default are omitted, and the prompt is replaced by its size.

use bottle_text::terminal::inert;
use std::collections::BTreeMap;

use bottle_policy::route::RouteSpec;
use bottle_protocol::session::bundle::LogLevel;
use bottle_text::yaml;
use serde::Serialize;

use super::resolved::{Egress, GitUser, Repo, ResolvedAgent, ResolvedManifest, Resources};
use crate::origin::{Origin, Traced};
use crate::provider::{ProviderConfig, ProviderSettings};

/// The rightmost column at which the comments are aligned. Longer lines do not move this column.
const MAX_COLUMN: usize = 56;

/// Renders a resolved manifest for the user.
#[must_use]
pub fn explain(manifest: &ResolvedManifest) -> String {
    page(manifest).finish()
}

/// Renders the manifest with the full prompt and without the source of each value, so that it can be compared
/// line by line with a later rendering.
#[must_use]
pub fn comparable(manifest: &ResolvedManifest) -> String {
    let lines = page(manifest).lines.into_iter().map(|(line, _)| line + "\n");
    format!("{}---\n{}", lines.collect::<String>(), inert(&manifest.agent.prompt))
}

fn page(manifest: &ResolvedManifest) -> Page {
    // All fields are named, here and in the functions below, so that the code does not compile until a new
    // field is handled.
    let ResolvedManifest {
        agent,
        bottles,
        layers,
        env,
        provider,
        git_user,
        repos,
        egress,
        supervise,
        backend,
        resources,
        services,
        budget,
        cutoff,
        mcp,
    } = manifest;
    let Egress { log, routes, ca_bundle, upstream_proxy } = egress;
    let mut page = Page::default();
    page.agent(agent);
    page.plain(0, "bottles", bottles);
    page.head(0, "layers");
    for layer in layers {
        page.item(1, &layer.name, Some(layer.source.to_string()));
    }
    page.map(0, "env", env);
    page.provider(provider);
    page.git_gate(git_user, repos);
    page.head(0, "egress");
    page.value(1, "log", &traced(log, log_number(log.value)));
    page.list(1, "routes", routes.iter().map(|route| traced(route, RouteSpec::from(&route.value))));
    page.maybe(1, "ca_bundle", ca_bundle.as_ref());
    page.maybe(1, "upstream_proxy", upstream_proxy.as_ref());
    page.value(0, "supervise", supervise);
    match backend {
        Some(backend) => page.value(0, "backend", backend),
        None => page.value(0, "backend", &Traced::default_of("any")),
    }
    page.resources(resources);
    if !services.is_empty() {
        page.head(0, "services");
        for (name, service) in services {
            page.value(1, name.as_str(), service);
        }
    }
    if !budget.is_empty() {
        page.head(0, "budget");
        for declared in budget {
            page.item(1, &declared.to_string(), Some(declared.origin.clone()));
        }
    }
    page.maybe(0, "cutoff", cutoff.as_ref());
    page.maybe(0, "mcp", mcp.as_ref());
    page
}

/// Returns the number that represents a log level in a manifest.
fn log_number(level: LogLevel) -> u8 {
    match level {
        LogLevel::Off => 0,
        LogLevel::Blocks => 1,
        LogLevel::Full => 2,
    }
}

fn bytes(count: u64) -> String {
    if count == 1 { "1 byte".to_owned() } else { format!("{count} bytes") }
}

/// Replaces a value, and keeps where it comes from.
fn traced<T, U>(original: &Traced<T>, value: U) -> Traced<U> {
    Traced { value, origin: original.origin.clone() }
}

/// Lines of YAML, each with a comment that says where the value comes from.
#[derive(Default)]
struct Page {
    lines: Vec<(String, Option<String>)>,
}

impl Page {
    fn agent(&mut self, agent: &ResolvedAgent) {
        self.entry(0, "agent", &agent.name, Some(agent.source.to_string()));
        self.plain(0, "prompt", &bytes(agent.prompt.len() as u64));
        self.list(
            0,
            "skills",
            agent.skills.iter().map(|skill| {
                let size: u64 = skill.value.files.iter().map(|file| file.size).sum();
                let count = skill.value.files.len();
                let files = if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
                let summary = format!("{} ({files}, {})", skill.value.name, bytes(size));
                traced(skill, summary)
            }),
        );
    }

    fn provider(&mut self, provider: &ProviderConfig) {
        let ProviderConfig {
            template,
            dockerfile,
            build_args,
            build_secrets,
            image,
            command,
            auth_token,
            forward_host_credentials,
            route,
            settings,
        } = provider;
        self.head(0, "agent_provider");
        self.value(1, "template", template);
        self.maybe(1, "dockerfile", dockerfile.as_ref());
        self.maybe(1, "build_args", build_args.as_ref());
        self.maybe(1, "build_secrets", build_secrets.as_ref());
        self.maybe(1, "image", image.as_ref());
        self.maybe(1, "command", command.as_ref());
        self.maybe(1, "auth_token", auth_token.as_ref());
        self.value(1, "forward_host_credentials", forward_host_credentials);
        self.maybe(1, "route", route.as_ref());
        self.settings(settings);
    }

    fn settings(&mut self, settings: &ProviderSettings) {
        let ProviderSettings {
            startup_args,
            provider,
            base_url,
            api,
            api_key,
            api_key_env,
            models,
            max_tokens_field,
            supports_developer_role,
            supports_reasoning_effort,
        } = settings;
        self.head(1, "settings");
        self.value(2, "startup_args", startup_args);
        self.maybe(2, "provider", provider.as_ref());
        self.maybe(2, "base_url", base_url.as_ref());
        self.maybe(2, "api", api.as_ref());
        self.maybe(2, "api_key", api_key.as_ref().map(|key| traced(key, "[hidden]")).as_ref());
        self.maybe(2, "api_key_env", api_key_env.as_ref());
        self.value(2, "models", models);
        self.maybe(2, "max_tokens_field", max_tokens_field.as_ref());
        self.maybe(2, "supports_developer_role", supports_developer_role.as_ref());
        self.maybe(2, "supports_reasoning_effort", supports_reasoning_effort.as_ref());
    }

    fn git_gate(&mut self, user: &GitUser, repos: &BTreeMap<bottle_policy::names::Name, Repo>) {
        let GitUser { name, email } = user;
        self.head(0, "git-gate");
        if name.is_some() || email.is_some() {
            self.head(1, "user");
            self.maybe(2, "name", name.as_ref());
            self.maybe(2, "email", email.as_ref());
        }
        if repos.is_empty() {
            return self.plain(1, "repos", &BTreeMap::<&str, &str>::new());
        }
        self.head(1, "repos");
        for (name, repo) in repos {
            let Repo { url, key, host_key, alias, refs, on_match, stale_ok } = repo;
            self.head(2, name.as_str());
            self.value(3, "url", &traced(url, url.value.as_str()));
            self.value(3, "key", key);
            self.maybe(3, "host_key", host_key.as_ref());
            self.maybe(3, "alias", alias.as_ref());
            self.value(3, "refs", refs);
            self.value(3, "on_match", on_match);
            self.value(3, "stale_ok", stale_ok);
        }
    }

    fn resources(&mut self, resources: &Resources) {
        let Resources { cpus, memory, pids, disk, nested } = resources;
        self.head(0, "resources");
        self.maybe(1, "cpus", cpus.as_ref());
        self.maybe(1, "memory", memory.as_ref());
        self.value(1, "pids", pids);
        self.maybe(1, "disk", disk.as_ref());
        self.value(1, "nested", nested);
    }

    fn head(&mut self, depth: usize, key: &str) {
        self.lines.push((format!("{}{key}:", "  ".repeat(depth)), None));
    }

    fn plain<T: Serialize>(&mut self, depth: usize, key: &str, value: &T) {
        self.entry(depth, key, value, None);
    }

    fn value<T: Serialize>(&mut self, depth: usize, key: &str, value: &Traced<T>) {
        self.entry(depth, key, &value.value, Some(value.origin.to_string()));
    }

    fn maybe<T: Serialize>(&mut self, depth: usize, key: &str, value: Option<&Traced<T>>) {
        if let Some(value) = value {
            self.value(depth, key, value);
        }
    }

    fn map<T: Serialize>(&mut self, depth: usize, key: &str, map: &BTreeMap<String, Traced<T>>) {
        if map.is_empty() {
            return self.entry(depth, key, map, Some(Origin::Default.to_string()));
        }
        self.head(depth, key);
        for (name, value) in map {
            self.value(depth + 1, name, value);
        }
    }

    fn list<T: Serialize>(&mut self, depth: usize, key: &str, items: impl Iterator<Item = Traced<T>>) {
        let mut items = items.peekable();
        if items.peek().is_none() {
            return self.entry(depth, key, &[(); 0], Some(Origin::Default.to_string()));
        }
        self.head(depth, key);
        for item in items {
            self.item(depth + 1, &item.value, Some(item.origin.to_string()));
        }
    }

    fn entry<T: Serialize>(&mut self, depth: usize, key: &str, value: &T, origin: Option<String>) {
        self.render(depth, &BTreeMap::from([(key, value)]), origin);
    }

    fn item<T: Serialize>(&mut self, depth: usize, value: &T, origin: Option<String>) {
        self.render(depth, &[value], origin);
    }

    /// Renders a value with the YAML writer. The comment `origin` is added to the first line of the value.
    fn render<T: Serialize>(&mut self, depth: usize, value: &T, mut origin: Option<String>) {
        let text = yaml::to_string(value).unwrap_or_else(|error| format!("# cannot render: {error}"));
        for line in text.lines() {
            self.lines.push((format!("{}{}", "  ".repeat(depth), inert(line)), origin.take()));
        }
    }

    fn finish(self) -> String {
        let width = |line: &str| line.chars().count();
        let column = self
            .lines
            .iter()
            .filter(|(_, origin)| origin.is_some())
            .map(|(line, _)| width(line))
            .filter(|width| *width <= MAX_COLUMN)
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for (line, origin) in self.lines {
            text.push_str(&line);
            if let Some(origin) = origin {
                text.push_str(&" ".repeat(column.saturating_sub(width(&line)) + 2));
                text.push_str("# ");
                text.push_str(&inert(&origin));
            }
            text.push('\n');
        }
        text
    }
}
