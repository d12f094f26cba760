//! Builds the plan. The only files that it reads are the files of skills and the Dockerfile.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;

use bottle_host::budget::{Declared, Limit, Scope};
use bottle_host::git_user::HostGitUser;
use bottle_host::process::ProcessId;
use bottle_host::settings::Waits;
use bottle_host::{Host, Settings};
use bottle_manifest::egress::UpstreamProxy;
use bottle_manifest::env_value::EnvValue;
use bottle_manifest::host_path;
use bottle_manifest::origin::{Origin, Traced};
use bottle_manifest::provider::{self, ArgvError, Login, LoginSource, Provider, Run};
use bottle_manifest::resolve::{ResolvedManifest, comparable};
use bottle_manifest::secret_ref::SecretRef;
use bottle_manifest::skills::{Skill, SkillError};
use bottle_policy::names::{AGENT_USER, BadName, Name, Slug};
use bottle_policy::route::{AuthSource, Route, RouteError, RouteTable};
use bottle_protocol::session::bundle::LogLevel;
use bottle_protocol::session::bundle::{Limits, ModelRules};
use bottle_protocol::session::guest::Size;
use sha2::{Digest, Sha256};

use super::secret_needs::{Needs, source_of, source_of_env};
use super::{
    AgentProcess, CodexPart, CopiedDirectory, DockerfileError, Egress, GitDirectory, GitField,
    GitFieldSource, GitIdentity, Identity, ImageSource, LiveDirectory, Plan, PlannedFile, PlannedService,
    Renewal, Resources, SecretSource, Unsettled, Value, Workspace, git_gate, image, slug,
};
use crate::forge::NoRepository;

/// The user's choices for a launch, given on the command line or in the settings.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// The slug of the bottle to resume. `None` creates a new slug.
    pub slug: Option<Slug>,
    /// The value of `--label`.
    pub label: Option<String>,
    /// The value of `--color-label`.
    pub color: Option<String>,
    /// The value of `--cwd`.
    pub workspace: Workspace,
    /// The directory of `--cwd=live`.
    pub live: Option<LiveDirectory>,
    /// The repository that contains the working directory, if the whole repository is copied instead of the directory.
    pub repository: Option<InRepository>,
    /// The copied directories, as in [`Identity::directories`].
    pub directories: Vec<CopiedDirectory>,
    /// The confirmed git directories, as in [`Plan::git_directories`].
    pub git_directories: Vec<GitDirectory>,
    /// The user's git ignore file, as in [`Plan::user_ignore_file`].
    pub user_ignore_file: Option<PathBuf>,
    /// The name of the chosen backend.
    pub backend: String,
    /// Whether `--detach` was given.
    pub detached: bool,
    /// The process of `--owned`.
    pub ends_with: Option<ProcessId>,
    /// The task given with `-p`.
    pub task: Option<String>,
    /// The size of the client's terminal. `None` if the agent runs on pipes.
    pub terminal: Option<Size>,
    /// Whether the client's standard input is forwarded to the agent.
    pub stdin: bool,
    /// The arguments after `--`.
    pub arguments: Vec<String>,
    /// Whether the agent resumes the conversation that was restored to [`Plan::transcript`].
    pub resumed: bool,
    /// `logs.keep`, in bytes.
    pub log_keep: u64,
    /// `egress.body_limit` and `egress.spool_quota`.
    pub limits: Limits,
    /// The settings `metering`.
    pub metering: ModelRules,
    /// `supervise.token_timeout` and `supervise.git_timeout`.
    pub waits: Waits,
    /// Whether `--no-supervise` was given, which overrides the bottle's `supervise`.
    pub unsupervised: bool,
    /// `--pull` and `--rebuild`.
    pub renewal: Renewal,
    /// Whether `--learn` was given.
    pub learn: bool,
    /// The user's git identity for the copied working directory. Empty if no directory is copied.
    pub git_user: HostGitUser,
    /// The image that the bottle uses instead of the image in its manifest.
    pub image: Option<ImageSource>,
    /// `--budget`.
    pub budget: Vec<Limit>,
}

impl Flags {
    /// Copies the values that come from the settings for each launch.
    #[must_use]
    pub fn with_settings(self, settings: &Settings) -> Self {
        Self {
            log_keep: settings.log_keep,
            limits: settings.limits,
            metering: settings.metering.clone(),
            waits: settings.waits,
            ..self
        }
    }
}

/// A directory in a repository. The whole repository is copied, not only this directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InRepository {
    /// The top of the repository.
    pub top: PathBuf,
    /// The directory, relative to `top`.
    pub inside: PathBuf,
}

/// Why a plan cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The label cannot be converted to a slug.
    #[error(transparent)]
    Label(#[from] BadName),
    /// The command line of the agent cannot be built.
    #[error("{agent}")]
    Argv {
        /// The name of the agent.
        agent: String,
        /// Why the command line cannot be built.
        source: ArgvError,
    },
    /// A file of a skill cannot be read.
    #[error(transparent)]
    Skill(#[from] SkillError),
    /// The Dockerfile cannot be read.
    #[error(transparent)]
    Dockerfile(#[from] DockerfileError),
    /// A deploy key cannot be created for a repository with this URL.
    #[error("`git-gate.repos.{name}.url` {why} ({origin})")]
    Repository {
        /// The name of the repository.
        name: Name,
        /// The problem, as the end of a sentence.
        why: NoRepository,
        /// Where the URL comes from.
        origin: String,
    },
    /// The routes conflict.
    #[error("cannot combine the bottle's routes")]
    Routes(#[from] RouteError),
}

/// Builds the plan for a launch. `random` fills a buffer with random bytes, and is used only for the slug.
///
/// # Errors
/// Returns [`PlanError`] if the plan cannot be built. No bottle is started in this case.
pub fn build(
    host: &Host,
    manifest: &ResolvedManifest,
    flags: &Flags,
    random: &mut dyn FnMut(&mut [u8]),
) -> Result<Plan, PlanError> {
    let provider = provider::for_template(manifest.provider.template.value);
    let identity = identity(host, manifest, flags, random)?;
    let run = run(manifest, flags, &identity);
    let argv = provider
        .argv(&run)
        .map_err(|source| PlanError::Argv { agent: manifest.agent.name.to_string(), source })?;
    let mut needs = Needs::default();
    let mut env: BTreeMap<String, Value> =
        provider.env(&run).into_iter().map(|(name, text)| (name, Value::Literal(text))).collect();
    env.extend(manifest_env(manifest, &mut needs));
    let login = provider.login(&manifest.provider);
    let (egress, unsettled) = egress(host, manifest, flags, login.as_ref(), &mut needs)?;
    let repos = git_gate::repos(host, manifest, &mut needs)?;
    let files = files(manifest, provider, &run, &flags.git_user)?;
    let image = match &flags.image {
        Some(image) => image.clone(),
        None => image::source(host, &manifest.provider, &mut needs)?,
    };
    let budget = budget(manifest, flags, &identity);
    let supervise = run.supervise;
    Ok(Plan {
        identity,
        budget,
        cutoff: manifest.cutoff.as_ref().map(|cutoff| cutoff.value),
        backend: flags.backend.clone(),
        image,
        renewal: flags.renewal,
        workspace: flags.workspace,
        live: flags.live.clone(),
        git_directories: flags.git_directories.clone(),
        user_ignore_file: flags.user_ignore_file.clone(),
        agent: AgentProcess {
            argv,
            terminal: flags.terminal,
            stdin: flags.stdin,
            prompt: Some(manifest.agent.prompt.clone()),
            task: flags.task.clone(),
        },
        env,
        files,
        git_identity: git_identity(manifest, flags),
        transcript: provider.transcript().iter().map(|path| in_home(path)).collect(),
        egress,
        repos,
        git_repos: git_gate::shown_url_config(manifest),
        supervise,
        learn: flags.learn,
        waits: flags.waits,
        placeholders: Vec::new(),
        unsettled,
        secrets: needs.into_list(),
        resources: resources(manifest),
        services: services(manifest),
        mcp: manifest.mcp.as_ref().filter(|_| supervise).map(|rules| rules.value.clone()),
        detached: flags.detached,
        ends_with: flags.ends_with,
        manifest_hash: hash(manifest),
        manifest: comparable(manifest),
    })
}

fn identity(
    host: &Host,
    manifest: &ResolvedManifest,
    flags: &Flags,
    random: &mut dyn FnMut(&mut [u8]),
) -> Result<Identity, PlanError> {
    Ok(Identity {
        slug: match &flags.slug {
            Some(slug) => slug.clone(),
            None => slug(flags.label.as_deref(), &manifest.agent.name, random)?,
        },
        label: flags.label.clone(),
        color: flags.color.clone(),
        agent: manifest.agent.name.clone(),
        bottles: manifest.bottles.clone(),
        lineage: manifest.layers.iter().map(|layer| layer.name.clone()).collect(),
        template: Some(manifest.provider.template.value),
        cwd: flags.repository.as_ref().map_or(&host.cwd, |repository| &repository.top).clone(),
        inside: flags.repository.as_ref().map(|repository| repository.inside.clone()),
        directories: flags.directories.clone(),
    })
}

/// Returns the budgets of this launch, the narrowest scope first.
fn budget(manifest: &ResolvedManifest, flags: &Flags, identity: &Identity) -> Vec<Declared> {
    let of_run = flags.budget.iter().map(|limit| Declared {
        scope: Scope::Run(identity.slug.clone()),
        limit: limit.clone(),
        origin: "--budget".to_owned(),
    });
    of_run.chain(manifest.budget.iter().cloned()).collect()
}

fn run<'a>(manifest: &'a ResolvedManifest, flags: &'a Flags, identity: &'a Identity) -> Run<'a> {
    Run {
        provider: &manifest.provider,
        name: identity.label.as_deref().unwrap_or(identity.slug.as_str()),
        color: flags.color.as_deref(),
        prompt: &manifest.agent.prompt,
        task: flags.task.as_deref(),
        arguments: &flags.arguments,
        terminal: flags.terminal.is_some(),
        resumed: flags.resumed,
        supervise: manifest.supervise.value && !flags.unsupervised,
    }
}

/// Returns the path of a file in the agent's home.
fn in_home(path: &str) -> String {
    format!("/home/{AGENT_USER}/{path}")
}

fn manifest_env(manifest: &ResolvedManifest, needs: &mut Needs) -> BTreeMap<String, Value> {
    let planned = manifest.env.iter().map(|(name, value)| {
        let value = match (&value.value, source_of_env(&value.value)) {
            (EnvValue::Literal(text), _) => Value::Literal(text.clone()),
            (_, Some(source)) => {
                let purpose = format!("the variable {name} of the bottle");
                Value::Secret(needs.add(format!("env.{name}"), source, purpose))
            }
            (_, None) => Value::Literal(String::new()),
        };
        (name.clone(), value)
    });
    planned.collect()
}

fn egress(
    host: &Host,
    manifest: &ResolvedManifest,
    flags: &Flags,
    login: Option<&Login>,
    needs: &mut Needs,
) -> Result<(Egress, Option<Unsettled>), PlanError> {
    let mut unsettled = None;
    let mut routes = Vec::new();
    for route in &manifest.egress.routes {
        routes.push(match login.filter(|_| route.value.provider) {
            Some(login) => {
                let (route, deferred) = provider_route(host, route, login, needs);
                unsettled = Some(deferred);
                route
            }
            None => runtime_route(host, route, needs),
        });
    }
    let table = RouteTable::new(routes)?;
    let upstream_proxy = manifest.egress.upstream_proxy.as_ref().map(|proxy| match &proxy.value {
        UpstreamProxy::Url(url) => Value::Literal(url.clone()),
        UpstreamProxy::Variable(name) => Value::Secret(needs.add(
            "egress.upstream_proxy".to_owned(),
            SecretSource::Env(name.clone()),
            "egress.upstream_proxy".to_owned(),
        )),
    });
    let ca_bundle = manifest.egress.ca_bundle.as_ref();
    let egress = Egress {
        routes: table.with_forges(git_gate::forges(manifest)),
        // `bottle learn` reads the log, so `learn` needs a log that is not off.
        log: match manifest.egress.log.value {
            LogLevel::Off if flags.learn => LogLevel::Blocks,
            level => level,
        },
        log_keep: flags.log_keep,
        limits: flags.limits,
        metering: flags.metering.clone(),
        ca_bundle: ca_bundle.map(|path| host_path::absolute(&path.value, &host.home, &host.user_home)),
        upstream_proxy,
    };
    Ok((egress, unsettled))
}

/// Returns the provider route as the proxy uses it, and the part of the route that depends on the credential's value.
fn provider_route(
    host: &Host,
    route: &Traced<Route>,
    login: &Login,
    needs: &mut Needs,
) -> (Route, Unsettled) {
    let mut route = route.value.clone();
    let slot = route.host.to_string();
    let purpose = format!("the agent's login at {slot}");
    let codex = |part| SecretSource::CodexLogin { file: codex_login(host), part };
    let (source, unsettled) = match &login.source {
        LoginSource::CodexHost => {
            let secret = "codex.account".to_owned();
            needs.add(secret.clone(), codex(CodexPart::AccountId), format!("the account's id at {slot}"));
            (codex(CodexPart::AccessToken), Unsettled::CodexAccount { secret })
        }
        LoginSource::Token(reference) => (
            source_of(reference, &host.home, &host.user_home),
            Unsettled::Forms { secret: slot.clone(), forms: login.forms.clone() },
        ),
        LoginSource::Prompt(question) => (
            SecretSource::Login((*question).to_owned()),
            Unsettled::Forms { secret: slot.clone(), forms: login.forms.clone() },
        ),
    };
    let slot = needs.add(slot, source, purpose);
    if let Some(auth) = &mut route.auth {
        auth.source = AuthSource::Slot(slot);
    }
    (route, unsettled)
}

/// Returns the path of codex's login file on this machine.
fn codex_login(host: &Host) -> PathBuf {
    let directory = host.env.get(OsStr::new("CODEX_HOME")).filter(|directory| !directory.is_empty());
    directory.map_or_else(|| host.user_home.join(".codex"), PathBuf::from).join("auth.json")
}

/// Converts a route to the form that the proxy uses, in which a slot replaces the secret reference. The slot's name is
/// the route's host, which is unique.
fn runtime_route(host: &Host, route: &Traced<Route>, needs: &mut Needs) -> Route {
    let mut route = route.value.clone();
    let name = route.host.to_string();
    if let Some(auth) = &mut route.auth
        && let AuthSource::Reference(reference) = &auth.source
        // The manifest parser has checked the reference. If the reference did not parse, the route would get no slot,
        // and the proxy would refuse the route's requests.
        && let Ok(reference) = reference.parse::<SecretRef>()
    {
        let source = source_of(&reference, &host.home, &host.user_home);
        let purpose = format!("the credential of the route {name}");
        auth.source = AuthSource::Slot(needs.add(name, source, purpose));
    }
    route
}

fn files(
    manifest: &ResolvedManifest,
    provider: &dyn Provider,
    run: &Run<'_>,
    user: &HostGitUser,
) -> Result<Vec<PlannedFile>, PlanError> {
    let own = provider.files(run).into_iter();
    let mut files: Vec<PlannedFile> = own.map(|file| private(file.path, file.content)).collect();
    files.extend(gitconfig(manifest));
    files.extend(rules_of_user(user));
    for skill in &manifest.agent.skills {
        files.extend(skill_files(&skill.value, provider)?);
    }
    Ok(files)
}

/// Creates a file in the agent's home that only the agent's user can read.
pub(super) fn private(path: &str, content: String) -> PlannedFile {
    PlannedFile { path: in_home(path), mode: 0o600, content: content.into_bytes() }
}

fn gitconfig(manifest: &ResolvedManifest) -> Option<PlannedFile> {
    let user = &manifest.git_user;
    let fields = [("name", &user.name), ("email", &user.email)];
    let lines: String = fields
        .into_iter()
        .filter_map(|(key, value)| {
            value.as_ref().map(|value| format!("\t{key} = {}\n", quoted(&value.value)))
        })
        .collect();
    let user = if lines.is_empty() { lines } else { format!("[user]\n{lines}") };
    let text = user + &git_gate::gitconfig(manifest);
    (!text.is_empty()).then(|| PlannedFile {
        path: in_home(".gitconfig"),
        mode: 0o644,
        content: text.into_bytes(),
    })
}

/// Returns the user's own ignore rules and attributes, at the paths where git reads them for every repository in the
/// bottle.
fn rules_of_user(user: &HostGitUser) -> impl Iterator<Item = PlannedFile> {
    let files = [(".config/git/ignore", &user.ignore_rules), (".config/git/attributes", &user.attributes)];
    let planned = |(path, content): (&str, &Vec<u8>)| {
        (!content.is_empty()).then(|| PlannedFile {
            path: in_home(path),
            mode: 0o644,
            content: content.clone(),
        })
    };
    files.into_iter().filter_map(planned)
}

/// Returns the author of the agent's commits. Each field has the manifest's value, otherwise the value for the copied
/// working directory, otherwise a default. The default lets every agent commit.
fn git_identity(manifest: &ResolvedManifest, flags: &Flags) -> GitIdentity {
    let agent = &manifest.agent.name;
    let field = |own: &Option<Traced<String>>, copied: &Option<String>, default: String| {
        let is_plain = |value: &&String| !value.is_empty() && !value.chars().any(char::is_control);
        let (value, source) = match (own, copied.as_ref().filter(is_plain)) {
            (Some(own), _) => (own.value.clone(), GitFieldSource::Manifest),
            (None, Some(copied)) => (copied.clone(), GitFieldSource::Copied),
            (None, None) => (default, GitFieldSource::Default),
        };
        GitField { value, source }
    };
    let (own, copied) = (&manifest.git_user, &flags.git_user);
    GitIdentity {
        name: field(&own.name, &copied.name, agent.to_string()),
        // RFC 2606 reserves `.invalid`, so mail to this address reaches nobody.
        email: field(&own.email, &copied.email, format!("{agent}@bottle.invalid")),
    }
}

/// Quotes a value for a git configuration file. The manifest parser has refused control characters.
pub(super) fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

fn skill_files(skill: &Skill, provider: &dyn Provider) -> Result<Vec<PlannedFile>, PlanError> {
    let directory = in_home(&format!("{}/{}", provider.skills(), skill.name));
    let planned = skill.files.iter().map(|file| {
        Ok(PlannedFile {
            path: format!("{directory}/{}", file.path),
            mode: if file.executable { 0o755 } else { 0o644 },
            content: Skill::read(file)?,
        })
    });
    planned.collect()
}

fn services(manifest: &ResolvedManifest) -> Vec<PlannedService> {
    let planned = manifest.services.iter().map(|(name, declared)| PlannedService {
        service: declared.value.service(name.clone()),
        after: declared.value.after.clone(),
    });
    planned.collect()
}

fn resources(manifest: &ResolvedManifest) -> Resources {
    let limits = &manifest.resources;
    Resources {
        cpus: limits.cpus.as_ref().map(|cpus| cpus.value.0),
        memory: limits.memory.as_ref().map(|size| size.value.0),
        // The manifest always has a value for `pids`. Only a value that a file sets may make a backend refuse the plan.
        pids: (limits.pids.origin != Origin::Default).then_some(limits.pids.value),
        disk: limits.disk.as_ref().map(|size| size.value.0),
        nested: limits.nested.value,
    }
}

/// Returns the hash of a manifest. Serialisation is deterministic, so equal hashes mean that the manifest has
/// not changed.
fn hash(manifest: &ResolvedManifest) -> String {
    let bytes = serde_json::to_vec(manifest).unwrap_or_default();
    hex::encode(Sha256::digest(&bytes))
}

#[cfg(test)]
pub(super) mod tests {
    use bottle_host::causes;
    use bottle_manifest::agent_provider::Template;
    use bottle_manifest::resolve::{Selection, resolve};
    use bottle_manifest::{Homes, Manifests};

    use super::*;
    use crate::{ImageSource, KnownHosts, PlannedKey};

    pub(crate) fn planned(bottle: &str, change: impl FnOnce(&mut Flags)) -> Result<Plan, PlanError> {
        let home = tempfile::tempdir().expect("a temporary directory");
        for (directory, text) in [("bottles", bottle), ("agents", "Do what is asked.\n")] {
            std::fs::create_dir_all(home.path().join(directory)).expect("directory");
            std::fs::write(home.path().join(directory).join("here.md"), text).expect("write");
        }
        let host = Host {
            env: BTreeMap::new(),
            cwd: "/project".into(),
            home: home.path().to_owned(),
            user_home: PathBuf::from("/home/somebody"),
            runtime: home.path().join("run"),
            program: "/usr/bin/bottle".into(),
        };
        let manifests = Manifests::new(Homes::from(&host));
        let here = || "here".parse().expect("name");
        let selection = Selection { agent: here(), bottles: vec![here()] };
        let resolved = resolve(&selection, &manifests).expect("resolved");
        let mut flags = Flags {
            budget: Vec::new(),
            slug: None,
            label: None,
            color: None,
            workspace: Workspace::Empty,
            live: None,
            repository: None,
            directories: Vec::new(),
            git_directories: Vec::new(),
            user_ignore_file: None,
            backend: "fake".to_owned(),
            detached: false,
            ends_with: None,
            task: None,
            terminal: None,
            stdin: false,
            arguments: Vec::new(),
            resumed: false,
            log_keep: 1 << 20,
            limits: Limits::default(),
            metering: ModelRules::default(),
            waits: Waits::default(),
            unsupervised: false,
            learn: false,
            renewal: Renewal::default(),
            image: None,
            git_user: HostGitUser::default(),
        };
        change(&mut flags);
        build(&host, &resolved.manifest, &flags, &mut |buffer| buffer.fill(1))
    }

    const WITH_A_KEY: &str = "---
env: {PLAIN: text, FROM_HOST: $SOMEWHERE}
agent_provider: {template: command, command: [agent, '{task}']}
egress:
  routes:
    - host: api.example.com
      auth: {scheme: Bearer, token_ref: 'file:~/key'}
---
";

    #[test]
    fn a_limit_of_processes_is_planned_only_if_a_file_sets_it() {
        let pids = |bottle: &str| planned(bottle, |_| {}).expect("a plan").resources.pids;
        assert_eq!(pids("---\n---\n"), None);
        assert_eq!(pids("---\nresources: {pids: 4096}\n---\n"), Some(4096));
    }

    #[test]
    fn names_secrets_without_their_values() {
        let plan = planned(WITH_A_KEY, |flags| flags.task = Some("go".to_owned())).expect("plan");
        let needs: Vec<_> = plan.secrets.iter().map(|need| (need.id.as_str(), &need.source)).collect();
        let key = SecretSource::File("/home/somebody/key".into());
        let variable = SecretSource::Env("SOMEWHERE".to_owned());
        assert_eq!(needs, [("env.FROM_HOST", &variable), ("api.example.com", &key)]);
        let auth = plan.egress.routes.routes()[0].auth.as_ref().expect("a credential");
        assert_eq!(auth.source, AuthSource::Slot("api.example.com".to_owned()));
        assert_eq!(plan.env["PLAIN"], Value::Literal("text".to_owned()));
        assert_eq!(plan.agent.argv, ["agent", "go"]);
        assert_eq!(plan.identity.slug.as_str(), "here-bbbbb");
    }

    #[test]
    fn the_same_input_gives_the_same_plan() {
        let plan = || planned(WITH_A_KEY, |flags| flags.task = Some("go".to_owned())).expect("plan");
        let (one, mut two) = (plan(), plan());
        // The two plans have different home directories. The manifest hash includes the paths of files, so the hashes
        // differ.
        two.manifest_hash.clone_from(&one.manifest_hash);
        assert_eq!(one, two);
    }

    #[test]
    fn plans_a_deploy_key_without_creating_it() {
        let planned = |url: &str, key: &str| {
            let text = format!(
                "---\nagent_provider: {{template: command, command: [agent]}}\ngit-gate: {{repos: {{tool: {{url: \
                 '{url}', key: {{token_ref: T, {key}}}}}}}}}\n---\n"
            );
            planned(&text, |_| ())
        };
        for (url, key, api, repository) in [
            (
                "git@Git.example.com:team/tool.git",
                "provider: gitea",
                "https://git.example.com/api/v1",
                "team/tool",
            ),
            ("git@github.com:team/tool", "provider: github", "https://api.github.com", "team/tool"),
            (
                "ssh://git@git.example.com:2222/team/a.b_c.git",
                "provider: gitea, api_url: 'https://forge.example.com:8443/api/v1/'",
                "https://forge.example.com:8443/api/v1",
                "team/a.b_c",
            ),
        ] {
            let plan = planned(url, key).expect(url);
            let PlannedKey::Deploy { token, keys, read_only, .. } = &plan.repos[0].key else {
                panic!("{url}")
            };
            assert_eq!((keys.api.as_str(), keys.repository.as_str(), *read_only), (api, repository, false));
            let need = plan.secrets.iter().find(|need| need.id == *token).expect("its token");
            assert_eq!(need.source, SecretSource::Env("T".to_owned()));
        }
        for url in [
            "git@git.example.com:tool.git",
            "git@git.example.com:a/b/c",
            "git@git.example.com:a/..",
            "git@h:a/b%2Fc",
        ] {
            let error = planned(url, "provider: gitea").expect_err("no OWNER/NAME").to_string();
            assert!(error.contains("git-gate.repos.tool.url") && error.contains("here.md:3"), "{error}");
        }
        let plan = planned("git@git.example.com:a/b", "provider: gitea, read_only: true").expect("a plan");
        assert!(matches!(plan.repos[0].key, PlannedKey::Deploy { read_only: true, .. }));
    }

    #[test]
    fn plans_repositories_and_redirects_git_to_the_gate() {
        let text = "---
agent_provider: {template: command, command: [agent]}
git-gate:
  user: {name: 'A \"B\"', email: a@example.com}
  repos:
    tool: {url: 'git@git.example.com:tool.git', key: {provider: static, path: ~/key}, host_key: ssh-ed25519 AAAA}
---
";
        let plan = planned(text, |_| ()).expect("a plan");
        let [repo] = &plan.repos[..] else { panic!("one repository") };
        let known = KnownHosts::Pinned("git.example.com ssh-ed25519 AAAA\n".to_owned());
        assert_eq!(repo.key, PlannedKey::Ssh { secret: "git-gate.tool".to_owned(), known });
        assert!(repo.supervise && plan.supervise);
        assert_eq!(plan.egress.routes.forges(), ["git.example.com"], "the proxy has the forge");
        let file = plan.files.iter().find(|file| file.path.ends_with(".gitconfig")).expect("git's");
        let text = String::from_utf8(file.content.clone()).expect("text");
        assert!(text.starts_with("[user]\n\tname = \"A \\\"B\\\"\"\n"), "{text}");
        assert!(
            text.contains("[url \"http://git-gate:9420/git.example.com/tool\"]\n\tinsteadOf = "),
            "{text}"
        );
    }

    /// Git reads the files at these paths for every repository, with the same precedence as on the user's machine.
    #[test]
    fn the_bottle_gets_the_users_own_rules_of_git() {
        let text = "---\nagent_provider: {template: command, command: [agent]}\n---\n";
        let files = |user: HostGitUser| {
            let plan = planned(text, |flags| flags.git_user = user).expect("a plan");
            let own = plan.files.into_iter().filter(|file| file.path.contains("/.config/git/"));
            own.map(|file| (file.path, String::from_utf8(file.content).expect("text"))).collect::<Vec<_>>()
        };
        assert_eq!(files(HostGitUser::default()), []);
        let user = HostGitUser { ignore_rules: b"*.log\n".to_vec(), ..HostGitUser::default() };
        assert_eq!(files(user), [(in_home(".config/git/ignore"), "*.log\n".to_owned())]);
        let user = HostGitUser { attributes: b"* text\n".to_vec(), ..HostGitUser::default() };
        assert_eq!(files(user), [(in_home(".config/git/attributes"), "* text\n".to_owned())]);
    }

    #[test]
    fn quotes_any_user_name_for_git() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("gitconfig");
        for name in [
            "A \"B\" \\ C",
            "a # b ; c",
            "  a  ",
            "\\",
            "\\n[core]",
            "[core] sshCommand = touch x",
            "a\" [include] path = x",
            "$(x) `y` %z",
            "\u{e9}\u{202e}",
        ] {
            let text = format!(
                "---\nagent_provider: {{template: command, command: [agent]}}\n\
                 git-gate: {{user: {{name: {0}, email: {0}}}}}\n---\n",
                serde_json::Value::from(name)
            );
            let plan = planned(&text, |_| ()).expect("a plan");
            let file = plan.files.iter().find(|file| file.path.ends_with(".gitconfig")).expect("git's");
            std::fs::write(&path, &file.content).expect("written");
            let mut git = std::process::Command::new("git");
            let read = git.args(["config", "--null", "--list", "--file"]).arg(&path).output().expect("git");
            let all = String::from_utf8(read.stdout).expect("text");
            assert_eq!(all, format!("user.name\n{name}\0user.email\n{name}\0"), "{name}");
        }
    }

    #[test]
    fn plans_resource_limits() {
        let text = "---\nagent_provider: {template: command, command: [agent]}\n\
                    resources: {memory: 1GiB, cpus: 1.5}\n---\n";
        let resources = planned(text, |_| ()).expect("a plan").resources;
        assert_eq!((resources.memory, resources.cpus), (Some(1 << 30), Some(1500)));
    }

    #[test]
    fn plans_the_image_and_reads_the_dockerfile() {
        let bottle =
            |keys: &str| format!("---\nagent_provider: {{template: command, command: [agent]{keys}}}\n---\n");
        let image = |keys: &str| planned(&bottle(keys), |_| ()).map(|plan| plan.image);
        assert_eq!(image("").expect("plan"), ImageSource::Provider(Template::Command));
        let reference = ImageSource::Reference("team/agent:1".to_owned());
        assert_eq!(image(", image: 'team/agent:1'").expect("plan"), reference);
        assert_eq!(image(", image: ./rootfs").expect("plan"), ImageSource::Path("rootfs".into()));
        // The test needs a file that exists. The content of the file does not matter.
        let text = bottle(", dockerfile: bottles/here.md");
        let dockerfile = ImageSource::Dockerfile {
            path: "bottles/here.md".into(),
            text: text.clone(),
            args: BTreeMap::new(),
            secrets: BTreeMap::new(),
        };
        assert_eq!(planned(&text, |_| ()).expect("plan").image, dockerfile);
        let error = image(", dockerfile: Dockerfile").expect_err("no such file").to_string();
        assert!(error.starts_with("the Dockerfile Dockerfile cannot be read: No such file"), "{error}");
        assert!(error.contains("here.md:2"), "{error}");
    }

    #[test]
    fn refuses_a_command_without_its_task() {
        let error = causes::one_line(&planned(WITH_A_KEY, |_| ()).expect_err("no task"));
        assert!(error.contains("here: the agent's command uses {task}"), "{error}");
    }
}
