//! The key `agent_provider` of one layer, which is a bottle manifest before the merge. A later layer replaces the whole
//! key, so the fields of one layer are checked together.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use bottle_policy::route::Narrowing;
use serde::{Serialize, Serializer};

use super::error::Fault;
use super::host_path;
use super::one_or_many::Entries;
use super::schema::ProviderSchema;
pub use super::schema::{SettingsLayer, Template};
use super::secret_ref::{BadSecretRef, SecretRef};
use super::{Position, Spanned};

/// The key `agent_provider` of one layer. An absent field gets its default value. It does not inherit a value from an
/// earlier layer.
#[derive(Debug, Clone, Default)]
pub struct ProviderLayer {
    /// The key `template`.
    pub template: Option<Spanned<Template>>,
    /// The key `dockerfile`, relative to `$BOTTLE_HOME`.
    pub dockerfile: Option<Spanned<PathBuf>>,
    /// The key `build_args`, as a map from names to values.
    pub build_args: Option<Spanned<BTreeMap<String, String>>>,
    /// The key `build_secrets`, as a map from ids to secret references.
    pub build_secrets: Option<Spanned<BTreeMap<String, SecretRef>>>,
    /// The key `image`.
    pub image: Option<Spanned<Image>>,
    /// The key `command`: the agent's argv. Not empty for [`Template::Command`]; absent for the other templates.
    pub command: Option<Spanned<Vec<String>>>,
    /// The key `auth_token`.
    pub auth_token: Option<Spanned<SecretRef>>,
    /// The key `forward_host_credentials`.
    pub forward_host_credentials: Option<Spanned<bool>>,
    /// The key `route`: narrows or extends the requests of the provider route, and sets its `connect_to` and `dlp`.
    pub route: Option<Spanned<Narrowing>>,
    /// The key `settings`.
    pub settings: SettingsLayer,
}

/// A prebuilt file system for the agent's container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// An image reference. It requires the Docker backend.
    Reference(String),
    /// A path to a directory or archive, relative to `$BOTTLE_HOME`.
    Path(PathBuf),
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reference(reference) => f.write_str(reference),
            Self::Path(path) => write!(f, "./{}", path.display()),
        }
    }
}

/// Why a text does not name an image, as a sentence fragment that follows the name of the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadImage(String);

impl FromStr for Image {
    type Err = BadImage;

    fn from_str(text: &str) -> Result<Self, BadImage> {
        if text.starts_with(['.', '/', '~']) {
            let path = host_path::within_home(text).map_err(|error| BadImage(error.to_string()))?;
            Ok(Self::Path(path))
        } else if is_image_reference(text) {
            Ok(Self::Reference(text.to_owned()))
        } else {
            Err(BadImage("must be an image reference or a path".to_owned()))
        }
    }
}

impl Serialize for Image {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl ProviderLayer {
    pub(super) fn from_schema(schema: Spanned<ProviderSchema>) -> Result<Spanned<Self>, Fault> {
        let at = schema.at;
        let ProviderSchema {
            template,
            dockerfile,
            build_args,
            build_secrets,
            image: root,
            command,
            auth_token,
            forward_host_credentials,
            route,
            settings,
        } = schema.value;
        let layer = Self {
            template,
            dockerfile: dockerfile.map(host_dockerfile).transpose()?,
            build_args: build_args.map(arguments_of_build).transpose()?,
            build_secrets: build_secrets.map(secrets_of_build).transpose()?,
            image: root.map(image).transpose()?,
            command: command.map(|argv| argument_list("agent_provider.command", argv)).transpose()?,
            auth_token: auth_token.map(|text| secret("agent_provider.auth_token", text)).transpose()?,
            forward_host_credentials,
            route,
            settings: settings.unwrap_or_default().checked()?,
        };
        layer.check_template(at)?;
        Ok(Spanned::new(layer, at))
    }

    /// Checks that the template's required fields are present, and that its unsupported fields are absent.
    fn check_template(&self, at: Position) -> Result<(), Fault> {
        if let (Some(dockerfile), Some(_)) = (&self.dockerfile, &self.image) {
            let message = "`agent_provider.dockerfile` and `agent_provider.image` exclude each other";
            return Err(Fault::new(dockerfile.at, message));
        }
        let args = self.build_args.as_ref().map(|args| ("build_args", args.at));
        let secrets = self.build_secrets.as_ref().map(|secrets| ("build_secrets", secrets.at));
        if let (None, Some((key, at))) = (&self.dockerfile, args.or(secrets)) {
            let message =
                format!("`agent_provider.{key}` has no meaning without `agent_provider.dockerfile`");
            return Err(Fault::new(at, message));
        }
        match self.template.as_ref().map(|template| template.value).unwrap_or_default() {
            Template::Command => self.check_command(at)?,
            template => self.check_known_agent(template)?,
        }
        Ok(())
    }

    /// Checks the fields for the template `command`. This template has no provider route and no login, so its
    /// hosts must be in `egress.routes`.
    fn check_command(&self, at: Position) -> Result<(), Fault> {
        if self.command.is_none() {
            let message =
                "`agent_provider.command` is missing: the template `command` needs the agent's argv";
            return Err(Fault::new(at, message).hint("for example `command: [my-agent, --task, \"{task}\"]`"));
        }
        let token = self.auth_token.as_ref().map(|token| ("auth_token", token.at));
        let route = self.route.as_ref().map(|route| ("route", route.at));
        if let Some((key, at)) = token.or(route) {
            let message = format!("`agent_provider.{key}` has no meaning for the template `command`");
            return Err(Fault::new(at, message)
                .hint("declare the host under `egress.routes`, with `auth` for its credential"));
        }
        self.refuse_others(Template::Command)
    }

    fn check_known_agent(&self, template: Template) -> Result<(), Fault> {
        match &self.command {
            Some(command) => Err(only_for("command", command.at, Template::Command, template)),
            None => self.refuse_others(template),
        }
    }

    /// Refuses fields that only codex or pi supports, if the template is another one.
    fn refuse_others(&self, template: Template) -> Result<(), Fault> {
        let forwards = self.forward_host_credentials.as_ref().filter(|forward| forward.value);
        if let (Some(forward), true) = (forwards, template != Template::Codex) {
            return Err(only_for("forward_host_credentials", forward.at, Template::Codex, template));
        }
        if let (Some(forward), Some(_)) = (forwards, &self.auth_token) {
            let message = "`agent_provider.forward_host_credentials` and `agent_provider.auth_token` exclude each other";
            return Err(Fault::new(forward.at, message)
                .hint("a bottle has one login: the given key, or codex's login on this machine"));
        }
        if let (Some((key, at)), true) = (self.settings.first_for_pi(), template != Template::Pi) {
            return Err(only_for(&format!("settings.{key}"), at, Template::Pi, template));
        }
        Ok(())
    }
}

fn only_for(key: &str, at: Position, owner: Template, template: Template) -> Fault {
    let message =
        format!("`agent_provider.{key}` is for the template `{owner}` only; here it is `{template}`");
    Fault::new(at, message)
}

impl SettingsLayer {
    fn checked(mut self) -> Result<Self, Fault> {
        let key = "agent_provider.settings.startup_args";
        self.startup_args = self.startup_args.map(|args| startup_arguments(key, args)).transpose()?;
        Ok(self)
    }

    /// Returns the first setting that only pi supports.
    fn first_for_pi(&self) -> Option<(&'static str, Position)> {
        let Self {
            startup_args: _,
            provider,
            base_url,
            api,
            api_key,
            api_key_env,
            models,
            max_tokens_field,
            supports_developer_role,
            supports_reasoning_effort,
        } = self;
        [
            ("provider", provider.as_ref().map(|v| v.at)),
            ("base_url", base_url.as_ref().map(|v| v.at)),
            ("api", api.as_ref().map(|v| v.at)),
            ("api_key", api_key.as_ref().map(|v| v.at)),
            ("api_key_env", api_key_env.as_ref().map(|v| v.at)),
            ("models", models.as_ref().map(|v| v.at)),
            ("max_tokens_field", max_tokens_field.as_ref().map(|v| v.at)),
            ("supports_developer_role", supports_developer_role.as_ref().map(|v| v.at)),
            ("supports_reasoning_effort", supports_reasoning_effort.as_ref().map(|v| v.at)),
        ]
        .into_iter()
        .find_map(|(key, at)| at.map(|at| (key, at)))
    }
}

/// Parses a secret reference. `key` is the key that contains it, for error messages.
pub(super) fn secret(key: &str, text: Spanned<String>) -> Result<Spanned<SecretRef>, Fault> {
    let at = text.at;
    text.try_map(|text| text.parse())
        .map_err(|error: BadSecretRef| Fault::new(at, format!("`{key}` {error}")))
}

fn host_dockerfile(text: Spanned<String>) -> Result<Spanned<PathBuf>, Fault> {
    let at = text.at;
    text.try_map(|text| host_path::within_home(&text))
        .map_err(|error| Fault::new(at, format!("`agent_provider.dockerfile` {error}")))
}

/// Checks the names of build arguments.
fn arguments_of_build(entries: Spanned<Entries<String>>) -> Result<Spanned<BTreeMap<String, String>>, Fault> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut args = BTreeMap::new();
    for (name, value) in entries.value.0 {
        if !is_name(&name.value) {
            let message = "a name in `agent_provider.build_args` must consist of letters, digits and `_`";
            return Err(Fault::new(name.at, message));
        }
        args.insert(name.value, value.value);
    }
    Ok(Spanned::new(args, entries.at))
}

/// Checks the ids of build secrets, and parses their references.
fn secrets_of_build(
    entries: Spanned<Entries<String>>,
) -> Result<Spanned<BTreeMap<String, SecretRef>>, Fault> {
    let is_id = |id: &str| {
        !id.is_empty() && id.len() <= 64 && id.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
    };
    let mut secrets = BTreeMap::new();
    for (id, reference) in entries.value.0 {
        if !is_id(&id.value) {
            let message =
                "an id in `agent_provider.build_secrets` must consist of letters, digits, `_`, `.` and `-`";
            return Err(Fault::new(id.at, message));
        }
        let reference = secret(&format!("agent_provider.build_secrets.{}", id.value), reference)?;
        secrets.insert(id.value, reference.value);
    }
    Ok(Spanned::new(secrets, entries.at))
}

/// Parses an image. A path must begin with `./`; all other text is an image reference, because `team/agent` could be a
/// path or an image reference.
fn image(text: Spanned<String>) -> Result<Spanned<Image>, Fault> {
    let fault = |why: String| {
        Fault::new(text.at, format!("`agent_provider.image` {why}"))
            .hint("write a path as `./images/agent.tar`, relative to $BOTTLE_HOME; anything else is an image reference")
    };
    let image = text.value.parse().map_err(|BadImage(why)| fault(why))?;
    Ok(Spanned::new(image, text.at))
}

/// Whether a text contains only the characters of an image reference, and the engine cannot mistake it for a
/// flag.
fn is_image_reference(text: &str) -> bool {
    text.len() <= 512
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@'))
}

fn argument_list(key: &str, argv: Spanned<Vec<String>>) -> Result<Spanned<Vec<String>>, Fault> {
    match argv.value.first() {
        Some(program) if !program.is_empty() => arguments(key, argv),
        _ => Err(Fault::new(argv.at, format!("`{key}` must begin with a program"))),
    }
}

/// Refuses an empty argument, because an agent treats it as an empty task. Such an argument often comes from an empty
/// variable or a forgotten value.
fn startup_arguments(key: &str, args: Spanned<Vec<String>>) -> Result<Spanned<Vec<String>>, Fault> {
    match args.value.iter().position(String::is_empty) {
        Some(index) => {
            Err(Fault::new(args.at, format!("`{key}[{index}]` is empty"))
                .hint("remove it, or leave the key out"))
        }
        None => arguments(key, args),
    }
}

fn arguments(key: &str, args: Spanned<Vec<String>>) -> Result<Spanned<Vec<String>>, Fault> {
    match args.value.iter().position(|arg| arg.contains('\0')) {
        Some(index) => Err(Fault::new(
            args.at,
            format!("`{key}[{index}]` contains a NUL character, which is invalid in an argument"),
        )),
        None => Ok(args),
    }
}
