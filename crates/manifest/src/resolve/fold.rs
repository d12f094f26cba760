//! Merges layers. Each kind of field has a rule, which the named function applies.
//!
//! | kind | rule | function |
//! |---|---|---|
//! | `env` | union, later wins per name | [`Folded::merge`] |
//! | `git-gate.user` | per field, later non-empty wins | [`Folded::merge`] |
//! | `git-gate.repos` | union by name, later wins per field; `{}` removes the ancestors' repositories | [`repos`] |
//! | `egress.routes` | concatenated; two routes for one host must be equal | [`routes`] |
//! | `services` | union by name, later wins as a whole | [`super::services`] |
//! | `agent_provider` | as a whole, the last layer that declares it wins | [`provider`] |
//! | `mcp` | as a whole, the last layer that declares it wins; `{}` turns it off | [`Folded::merge`] |
//! | the rest | the last layer that declares it wins | [`Folded::merge`] |

use std::collections::BTreeMap;

use bottle_host::budget::OnSpent;
use bottle_policy::names::Name;
use bottle_policy::route::Route;
use bottle_protocol::session::bundle::LogLevel;
use bottle_protocol::session::process::ProcessName;

use super::DEFAULT_PIDS;
use super::linearise::{Layer, ancestors};
use super::provider_route;
use super::resolved::{Egress, GitUser, Repo, Resources};
use super::services::services;
use crate::agent_provider::{ProviderLayer, SettingsLayer};
use crate::egress::EgressLayer;
use crate::env_value::EnvValue;
use crate::git_gate::{GitGateLayer, RepoLayer, RepoUrl, UserLayer};
use crate::git_key::KeySource;
use crate::mcp::ChildRules;
use crate::origin::{Origin, Traced};
use crate::provider::ProviderConfig;
use crate::resources::ResourcesLayer;
use crate::services::ServiceLayer;
use crate::{AgentManifest, BottleLayer, ManifestError, Spanned};

/// The result of merging layers.
#[cfg_attr(test, derive(serde::Serialize))]
pub(super) struct Folded {
    pub(super) env: BTreeMap<String, Traced<EnvValue>>,
    pub(super) provider: ProviderConfig,
    pub(super) git_user: GitUser,
    pub(super) repos: BTreeMap<Name, Repo>,
    pub(super) egress: Egress,
    pub(super) supervise: Traced<bool>,
    pub(super) backend: Option<Traced<Name>>,
    pub(super) resources: Resources,
    pub(super) services: Vec<(ProcessName, Traced<ServiceLayer>)>,
    pub(super) cutoff: Option<Traced<OnSpent>>,
    pub(super) mcp: Option<Traced<ChildRules>>,
}

/// Merges layers. A later layer takes precedence over an earlier one.
pub(super) fn fold(layers: &[Layer]) -> Result<Folded, ManifestError> {
    let provider = provider(layers);
    let provider_route = provider_route::route(&provider)?;
    if let Some(route) = &provider_route {
        provider_route::refuse_duplicate(route, provider.template.value, layers)?;
    }
    let mut folded = Folded {
        env: BTreeMap::new(),
        provider,
        git_user: GitUser::default(),
        repos: repos(layers)?,
        egress: Egress {
            log: Traced::default_of(LogLevel::Blocks),
            routes: provider_route.into_iter().chain(routes(layers)?).collect(),
            ca_bundle: None,
            upstream_proxy: None,
        },
        supervise: Traced::default_of(true),
        backend: None,
        resources: Resources {
            cpus: None,
            memory: None,
            pids: Traced::default_of(DEFAULT_PIDS),
            disk: None,
            nested: Traced::default_of(false),
        },
        services: services(layers)?,
        cutoff: None,
        mcp: None,
    };
    for layer in layers {
        folded.merge(layer);
    }
    // `mcp: {}` turns off what an earlier layer allows.
    folded.mcp = folded.mcp.filter(|rules| !rules.value.agents.is_empty());
    Ok(folded)
}

impl Folded {
    /// Overrides the fields that the layer sets. The functions [`repos`], [`routes`] and [`provider`] merge
    /// the other fields. All fields are named, so that the code does not compile until a new field is
    /// handled.
    fn merge(&mut self, layer: &Layer) {
        let BottleLayer {
            name: _,
            source: _,
            extends: _,
            provider: _,
            // Budgets are not merged: each layer's budget applies to its own scope.
            budget: _,
            // The function `services` merges this field.
            services: _,
            env,
            git_gate,
            egress,
            supervise,
            backend,
            resources,
            cutoff,
            mcp,
        } = &layer.body;
        let GitGateLayer { user: UserLayer { name, email }, repos: _ } = git_gate;
        let EgressLayer { log, routes: _, ca_bundle, upstream_proxy } = egress;
        let ResourcesLayer { cpus, memory, pids, disk, nested } = resources;
        for (name, value) in env {
            self.env.insert(name.clone(), Traced::in_layer(layer, value));
        }
        self.git_user.name.declare(layer, name);
        self.git_user.email.declare(layer, email);
        self.egress.log.declare(layer, log);
        self.egress.ca_bundle.declare(layer, ca_bundle);
        self.egress.upstream_proxy.declare(layer, upstream_proxy);
        self.supervise.declare(layer, supervise);
        self.backend.declare(layer, backend);
        self.cutoff.declare(layer, cutoff);
        self.mcp.declare(layer, mcp);
        self.resources.cpus.declare(layer, cpus);
        self.resources.memory.declare(layer, memory);
        self.resources.pids.declare(layer, pids);
        self.resources.disk.declare(layer, disk);
        self.resources.nested.declare(layer, nested);
    }
}

/// A field that gets its value from the last layer that sets it.
trait Field<T> {
    /// Overrides the value if the layer sets one.
    fn declare(&mut self, layer: &Layer, declared: &Option<Spanned<T>>);
}

impl<T: Clone> Field<T> for Traced<T> {
    fn declare(&mut self, layer: &Layer, declared: &Option<Spanned<T>>) {
        if let Some(value) = declared {
            *self = Self::in_layer(layer, value);
        }
    }
}

impl<T: Clone> Field<T> for Option<Traced<T>> {
    fn declare(&mut self, layer: &Layer, declared: &Option<Spanned<T>>) {
        if let Some(value) = declared {
            *self = Some(Traced::in_layer(layer, value));
        }
    }
}

/// Overrides the name and email of the bottle's git identity with those of the agent, if the agent sets them.
pub(super) fn override_git_user(user: &mut GitUser, agent: &AgentManifest) {
    for (field, own) in [(&mut user.name, &agent.user.name), (&mut user.email, &agent.user.email)] {
        if let Some(own) = own {
            *field = Some(Traced { value: own.value.clone(), origin: Origin::in_agent(agent, own.at) });
        }
    }
}

/// Concatenates the routes of all layers. If two layers have the same route for a host, it is used once; two
/// different routes for a host are an error.
fn routes(layers: &[Layer]) -> Result<Vec<Traced<Route>>, ManifestError> {
    let mut routes: Vec<Traced<Route>> = Vec::new();
    let mut by_host = BTreeMap::new();
    for layer in layers {
        for route in &layer.body.egress.routes {
            let Some(&earlier) = by_host.get(&route.value.host) else {
                by_host.insert(route.value.host.clone(), routes.len());
                routes.push(Traced::in_layer(layer, route));
                continue;
            };
            let earlier: &Traced<Route> = &routes[earlier];
            if earlier.value != route.value {
                let host = &route.value.host;
                let message = format!("the host `{host}` has another route already, at {}", earlier.origin);
                return Err(ManifestError::at(&layer.body.source, route.at, message)
                    .hint("a host has one route: make the two equal, or keep one of them"));
            }
        }
    }
    Ok(routes)
}

/// Merges repositories by name. First, an explicit `{}` in a layer removes the repositories of the manifests that this
/// layer extends. Then, each field of a repository gets its value from the last layer that sets the field.
fn repos(layers: &[Layer]) -> Result<BTreeMap<Name, Repo>, ManifestError> {
    let mut declaring: Vec<&Layer> = Vec::new();
    for layer in layers {
        match &layer.body.git_gate.repos {
            None => {}
            Some(repos) if repos.value.is_empty() => {
                let ancestors = ancestors(layers, layer);
                declaring.retain(|earlier| !ancestors.contains(&earlier.body.name));
            }
            Some(_) => declaring.push(layer),
        }
    }
    let mut declared: BTreeMap<Name, Vec<Declaration<'_>>> = BTreeMap::new();
    for layer in declaring {
        for (name, repo) in layer.body.git_gate.repos.iter().flat_map(|repos| &repos.value) {
            declared.entry(name.clone()).or_default().push(Declaration { layer, repo });
        }
    }
    declared.into_iter().map(|(name, entry)| Ok((name.clone(), repo(&name, &entry)?))).collect()
}

/// The entry for a repository in one layer.
struct Declaration<'a> {
    layer: &'a Layer,
    repo: &'a Spanned<RepoLayer>,
}

fn repo(name: &Name, entry: &[Declaration<'_>]) -> Result<Repo, ManifestError> {
    let (mut last_url, mut last_key, mut last_host_key, mut last_alias) = (None, None, None, None);
    let (mut last_refs, mut last_on_match, mut last_stale_ok) =
        (Traced::default(), Traced::default(), Traced::default());
    for Declaration { layer, repo } in entry {
        let RepoLayer { url, key, host_key, alias, refs, on_match, stale_ok } = &repo.value;
        last_url.declare(layer, url);
        last_key.declare(layer, key);
        last_host_key.declare(layer, host_key);
        last_alias.declare(layer, alias);
        last_refs.declare(layer, refs);
        last_on_match.declare(layer, on_match);
        last_stale_ok.declare(layer, stale_ok);
    }
    let url: Traced<RepoUrl> = last_url.ok_or_else(|| lacks(name, "url", entry))?;
    let key: Traced<KeySource> = last_key.ok_or_else(|| lacks(name, "key", entry))?;
    let token = matches!(key.value, KeySource::Token { .. });
    if token != matches!(url.value, RepoUrl::Https(_)) {
        let message = format!(
            "`git-gate.repos.{name}`: the key (at {}) does not fit the URL (at {})",
            key.origin, url.origin
        );
        return Err(at_last(entry, message)
            .hint("an https URL needs the provider `token`, an ssh URL `static`, `gitea` or `github`"));
    }
    Ok(Repo {
        url,
        key,
        host_key: last_host_key,
        alias: last_alias,
        refs: last_refs,
        on_match: last_on_match,
        stale_ok: last_stale_ok,
    })
}

fn lacks(name: &Name, key: &str, entry: &[Declaration<'_>]) -> ManifestError {
    at_last(
        entry,
        format!("`git-gate.repos.{name}` lacks `{key}`, and so do the bottles it is combined with"),
    )
}

/// Creates an error at the entry of the last layer that has the repository.
fn at_last(entry: &[Declaration<'_>], message: String) -> ManifestError {
    match entry.last() {
        Some(Declaration { layer, repo }) => ManifestError::at(&layer.body.source, repo.at, message),
        None => ManifestError::in_selection(message),
    }
}

/// Returns the provider of the last layer that has the key. Fields that this layer does not set get their
/// defaults.
fn provider(layers: &[Layer]) -> ProviderConfig {
    let mut config = ProviderConfig::default();
    let declared = layers.iter().rev().find_map(|layer| Some((layer, layer.body.provider.as_ref()?)));
    let Some((layer, provider)) = declared else { return config };
    let ProviderLayer {
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
    } = &provider.value;
    config.template.declare(layer, template);
    config.dockerfile.declare(layer, dockerfile);
    config.build_args.declare(layer, build_args);
    config.build_secrets.declare(layer, build_secrets);
    config.image.declare(layer, image);
    config.command.declare(layer, command);
    config.auth_token.declare(layer, auth_token);
    config.forward_host_credentials.declare(layer, forward_host_credentials);
    config.route.declare(layer, route);
    let SettingsLayer {
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
    let settings = &mut config.settings;
    settings.startup_args.declare(layer, startup_args);
    settings.provider.declare(layer, provider);
    settings.base_url.declare(layer, base_url);
    settings.api.declare(layer, api);
    settings.api_key.declare(layer, api_key);
    settings.api_key_env.declare(layer, api_key_env);
    settings.models.declare(layer, models);
    settings.max_tokens_field.declare(layer, max_tokens_field);
    settings.supports_developer_role.declare(layer, supports_developer_role);
    settings.supports_reasoning_effort.declare(layer, supports_reasoning_effort);
    config
}
