//! Merges layers, with one function for each kind of field.
//!
//! | kind | rule | function |
//! |---|---|---|
//! | `env` | union, later wins per name | [`env()`] |
//! | `git-gate.user` | per field, later non-empty wins | [`git_user`] |
//! | `git-gate.repos` | union by name, later wins per field; `{}` removes the repositories of the file's ancestors | [`repos`] |
//! | `egress.routes` | concatenated; two routes for one host must be equal | [`routes`] |
//! | the rest, `agent_provider` as a whole | the last layer that declares it wins | [`last`] |

use std::collections::BTreeMap;

use bottle_contract::names::Name;
use bottle_contract::route::Route;
use bottle_contract::session::bundle::LogLevel;

use super::DEFAULT_PIDS;
use super::linearise::{Layer, ancestors};
use super::provider_route;
use super::resolved::{Egress, GitUser, Repo, Resources};
use crate::manifest::env_value::EnvValue;
use crate::manifest::git_gate::{OnMatch, RefRules, RepoLayer, RepoUrl};
use crate::manifest::git_key::KeySource;
use crate::manifest::origin::{Origin, Traced};
use crate::manifest::provider::{ProviderLayer, SettingsLayer, Template};
use crate::manifest::{AgentManifest, Located, ManifestError};
use crate::provider::{ProviderConfig, ProviderSettings};

/// The merged layers.
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
}

/// Merges layers, earlier to later.
pub(super) fn fold(layers: &[Layer]) -> Result<Folded, ManifestError> {
    let provider = provider(layers);
    let provider_route = provider_route::route(&provider)?;
    if let Some(route) = &provider_route {
        provider_route::refuse_duplicate(route, provider.template.value, layers)?;
    }
    Ok(Folded {
        env: env(layers),
        provider,
        git_user: git_user(layers),
        repos: repos(layers)?,
        egress: Egress {
            log: last(layers, |layer| layer.body.egress.log.as_ref())
                .unwrap_or(Traced::default_of(LogLevel::Off)),
            routes: provider_route.into_iter().chain(routes(layers)?).collect(),
            ca_bundle: last(layers, |layer| layer.body.egress.ca_bundle.as_ref()),
            upstream_proxy: last(layers, |layer| layer.body.egress.upstream_proxy.as_ref()),
        },
        supervise: last(layers, |layer| layer.body.supervise.as_ref()).unwrap_or(Traced::default_of(true)),
        backend: last(layers, |layer| layer.body.backend.as_ref()),
        resources: resources(layers),
    })
}

/// The value of the last layer that has the field.
fn last<'a, T: Clone + 'a>(
    layers: &'a [Layer],
    field: impl Fn(&'a Layer) -> Option<&'a Located<T>>,
) -> Option<Traced<T>> {
    layers.iter().rev().find_map(|layer| field(layer).map(|value| Traced::in_layer(layer, value)))
}

/// Union; later wins per name.
fn env(layers: &[Layer]) -> BTreeMap<String, Traced<EnvValue>> {
    let mut env = BTreeMap::new();
    for layer in layers {
        for (name, value) in &layer.body.env {
            env.insert(name.clone(), Traced::in_layer(layer, value));
        }
    }
    env
}

/// Per field, later non-empty wins (an empty one counts as absent).
fn git_user(layers: &[Layer]) -> GitUser {
    GitUser {
        name: last(layers, |layer| layer.body.git_gate.user.name.as_ref()),
        email: last(layers, |layer| layer.body.git_gate.user.email.as_ref()),
    }
}

/// Overrides the bottle's git identity with the agent's, per field.
pub(super) fn override_git_user(user: &mut GitUser, agent: &AgentManifest) {
    for (field, own) in [(&mut user.name, &agent.user.name), (&mut user.email, &agent.user.email)] {
        if let Some(own) = own {
            *field = Some(Traced { value: own.value.clone(), origin: Origin::in_agent(agent, own.at) });
        }
    }
}

/// Concatenated. Of two routes for one host, an equal one is dropped, another one is an error.
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

/// Union by name, later wins per field, after every explicit `{}` removed its ancestors' repositories.
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

/// One layer's entry for one repository.
struct Declaration<'a> {
    layer: &'a Layer,
    repo: &'a Located<RepoLayer>,
}

fn repo(name: &Name, entry: &[Declaration<'_>]) -> Result<Repo, ManifestError> {
    let url = last_declared(entry, |repo| repo.url.as_ref()).ok_or_else(|| lacks(name, "url", entry))?;
    let key = last_declared(entry, |repo| repo.key.as_ref()).ok_or_else(|| lacks(name, "key", entry))?;
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
        host_key: last_declared(entry, |repo| repo.host_key.as_ref()),
        alias: last_declared(entry, |repo| repo.alias.as_ref()),
        refs: last_declared(entry, |repo| repo.refs.as_ref())
            .unwrap_or(Traced::default_of(RefRules::default())),
        on_match: last_declared(entry, |repo| repo.on_match.as_ref())
            .unwrap_or(Traced::default_of(OnMatch::default())),
        stale_ok: last_declared(entry, |repo| repo.stale_ok.as_ref()).unwrap_or(Traced::default_of(false)),
    })
}

fn lacks(name: &Name, key: &str, entry: &[Declaration<'_>]) -> ManifestError {
    at_last(
        entry,
        format!("`git-gate.repos.{name}` lacks `{key}`, and so do the bottles it is combined with"),
    )
}

/// An error at the last declaration of a repository.
fn at_last(entry: &[Declaration<'_>], message: String) -> ManifestError {
    match entry.last() {
        Some(Declaration { layer, repo }) => ManifestError::at(&layer.body.source, repo.at, message),
        None => ManifestError { file: "the chosen bottles".to_owned(), position: None, message, hint: None },
    }
}

fn last_declared<'a, T: Clone + 'a>(
    entry: &[Declaration<'a>],
    field: impl Fn(&'a RepoLayer) -> Option<&'a Located<T>>,
) -> Option<Traced<T>> {
    entry.iter().rev().find_map(|declaration| {
        field(&declaration.repo.value).map(|value| Traced::in_layer(declaration.layer, value))
    })
}

/// As a whole: the last layer that has the key; its absent fields have their defaults.
fn provider(layers: &[Layer]) -> ProviderConfig {
    let declared =
        layers.iter().rev().find_map(|layer| layer.body.provider.as_ref().map(|provider| (layer, provider)));
    let nothing = ProviderLayer::default();
    let (layer, provider) = match declared {
        Some((layer, provider)) => (Some(layer), &provider.value),
        None => (None, &nothing),
    };
    let from = Declared { layer };
    ProviderConfig {
        template: from.or(provider.template.as_ref(), Template::default()),
        dockerfile: from.maybe(provider.dockerfile.as_ref()),
        image: from.maybe(provider.image.as_ref()),
        command: from.maybe(provider.command.as_ref()),
        auth_token: from.maybe(provider.auth_token.as_ref()),
        forward_host_credentials: from.or(provider.forward_host_credentials.as_ref(), false),
        route: from.maybe(provider.route.as_ref()),
        settings: from.settings(&provider.settings),
    }
}

/// The layer that declares the provider, if any.
struct Declared<'a> {
    layer: Option<&'a Layer>,
}

impl Declared<'_> {
    fn maybe<T: Clone>(&self, value: Option<&Located<T>>) -> Option<Traced<T>> {
        Some(Traced::in_layer(self.layer?, value?))
    }

    fn or<T: Clone>(&self, value: Option<&Located<T>>, default: T) -> Traced<T> {
        self.maybe(value).unwrap_or(Traced::default_of(default))
    }

    fn settings(&self, settings: &SettingsLayer) -> ProviderSettings {
        ProviderSettings {
            startup_args: self.or(settings.startup_args.as_ref(), Vec::new()),
            provider: self.maybe(settings.provider.as_ref()),
            base_url: self.maybe(settings.base_url.as_ref()),
            api: self.maybe(settings.api.as_ref()),
            api_key: self.maybe(settings.api_key.as_ref()),
            api_key_env: self.maybe(settings.api_key_env.as_ref()),
            models: self.or(settings.models.as_ref(), Vec::new()),
            max_tokens_field: self.maybe(settings.max_tokens_field.as_ref()),
            supports_developer_role: self.maybe(settings.supports_developer_role.as_ref()),
            supports_reasoning_effort: self.maybe(settings.supports_reasoning_effort.as_ref()),
        }
    }
}

/// Each field separately.
fn resources(layers: &[Layer]) -> Resources {
    Resources {
        cpus: last(layers, |layer| layer.body.resources.cpus.as_ref()),
        memory: last(layers, |layer| layer.body.resources.memory.as_ref()),
        pids: last(layers, |layer| layer.body.resources.pids.as_ref())
            .unwrap_or(Traced::default_of(DEFAULT_PIDS)),
        disk: last(layers, |layer| layer.body.resources.disk.as_ref()),
        nested: last(layers, |layer| layer.body.resources.nested.as_ref())
            .unwrap_or(Traced::default_of(false)),
    }
}
