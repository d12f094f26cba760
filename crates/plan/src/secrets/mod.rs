//! Resolves secret references to values. Only the process that has the user's terminal does this, and only at launch.
//!
//! Values exist only in memory and in the launch order. The launch order is the message that sends the values to the
//! bottle's keeper. Every read has a size limit, and every command has a deadline. No message to the user contains a
//! value.

mod codex_login;
mod keychain;
mod saved_references;

use std::collections::BTreeMap;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use bottle_host::Host;
use bottle_manifest::secret_ref::SecretRef;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::SecretText;
use tokio::io::AsyncReadExt;
use zeroize::Zeroizing;

use self::saved_references::SavedReferences;
use crate::{SecretNeed, SecretSource};

/// The size limit of a secret in bytes. A longer secret is an error. Every token, key or certificate is shorter.
const SECRET_MAX: usize = 64 * 1024;

/// The time limit of a command that prints a secret. A command that takes longer is killed, and the launch
/// fails. The limit is long because the user may have to unlock a vault or touch a security key.
const COMMAND_DEADLINE: Duration = Duration::from_secs(120);

/// Prompts the user for secrets. A command of `bottle` that runs without a terminal has no implementation of this
/// trait, so it cannot prompt.
pub trait Ask: Send {
    /// Prompts for one secret without echo. Returns `None` if the user cancels.
    ///
    /// # Errors
    /// When reading from the terminal fails.
    fn secret(&mut self, question: &str) -> io::Result<Option<Secret>>;
}

/// The resolved secrets of a launch.
#[derive(Debug, Default)]
pub struct Secrets {
    /// The values, by the id of the secret in the plan.
    pub values: BTreeMap<String, SecretText>,
    /// Warnings about the sources, for example about a file that other users can read.
    pub warnings: Vec<String>,
}

/// Why a secret cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The secrets have no value, and there is no terminal for a prompt.
    #[error("{}", missing(.0))]
    Missing(Vec<SecretNeed>),
    /// The user cancelled the prompt.
    #[error("no value was given for {0}")]
    Cancelled(String),
    /// The source cannot be read.
    #[error("cannot read the secret for {purpose}")]
    Unreadable {
        /// What the secret is for.
        purpose: String,
        /// The cause. Never contains the secret's value.
        source: anyhow::Error,
        /// The user's next step.
        hint: &'static str,
    },
}

/// The default hint for a source that cannot be read.
const FIX_HINT: &str = "fix the source or the reference: `bottle info AGENT --explain` shows its position";

impl SecretError {
    /// Returns the user's next step.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing(needs) => {
                let name = needs.iter().find_map(|need| match &need.source {
                    SecretSource::Env(name) => Some(name.as_str()),
                    _ => None,
                });
                Some(match name {
                    Some(name) => format!(
                        "set it (`export {name}=…`), start on a terminal to be prompted, or refer to it as \
                         `file:PATH` or `cmd:COMMAND` in the manifest"
                    ),
                    None if needs.iter().any(|need| matches!(need.source, SecretSource::Login(_))) => {
                        "start on a terminal to be prompted, or set it in the bottle: \
                         `agent_provider: {auth_token: NAME}`, with NAME a variable of yours"
                            .to_owned()
                    }
                    None => "start on a terminal to be prompted, or use `$NAME` in the manifest".to_owned(),
                })
            }
            Self::Cancelled(_) => None,
            Self::Unreadable { hint, .. } => Some((*hint).to_owned()),
        }
    }
}

/// Resolves every needed secret. Reads each source, or prompts for the source's value, only once. Without `ask`, a
/// secret that needs a prompt is reported as missing.
///
/// # Errors
/// [`SecretError`] that names all missing secrets, or the first secret whose source cannot be read. Also when the user
/// cancels a prompt.
pub async fn resolve(
    host: &Host,
    needs: &[SecretNeed],
    mut ask: Option<&mut dyn Ask>,
) -> Result<Secrets, SecretError> {
    let mut secrets = Secrets::default();
    let mut resolved: Vec<(&SecretSource, Secret)> = Vec::new();
    let mut absent = Vec::new();
    for need in needs {
        let value = match resolved.iter().find(|(source, _)| **source == need.source) {
            Some((_, value)) => Some(value.clone()),
            None => match &need.source {
                SecretSource::Env(name) => from_env_or_saved(host, name, need, &mut secrets.warnings).await?,
                SecretSource::File(path) => Some(from_file(host, path, need, &mut secrets.warnings)?),
                SecretSource::Keychain(name) => Some(keychain::read(host, name, need).await?),
                SecretSource::Command(argv) => Some(from_command(host, argv, need).await?),
                SecretSource::CodexLogin { file, part } => Some(codex_login::part(file, *part, need)?),
                SecretSource::Prompt(_) | SecretSource::Login(_) => None,
            },
        };
        let value = match (value, ask.as_deref_mut()) {
            (Some(value), _) => value,
            (None, Some(user)) => prompt(host, user, need, &mut secrets.warnings).await?,
            (None, None) => {
                absent.push(need.clone());
                continue;
            }
        };
        resolved.push((&need.source, value.clone()));
        secrets.values.insert(need.id.clone(), SecretText(value));
    }
    if absent.is_empty() { Ok(secrets) } else { Err(SecretError::Missing(absent)) }
}

async fn prompt(
    host: &Host,
    user: &mut dyn Ask,
    need: &SecretNeed,
    warnings: &mut Vec<String>,
) -> Result<Secret, SecretError> {
    let question = match &need.source {
        SecretSource::Prompt(text) => text.clone(),
        SecretSource::Login(text) => format!("{text} ({})", need.purpose),
        SecretSource::Env(name) => {
            format!("{name} ({}); or file:PATH or cmd:COMMAND, to be read from now on", need.purpose)
        }
        SecretSource::File(_)
        | SecretSource::Keychain(_)
        | SecretSource::Command(_)
        | SecretSource::CodexLogin { .. } => need.purpose.clone(),
    };
    let value = match user.secret(&question) {
        Ok(Some(value)) if !value.expose().is_empty() => value,
        Ok(_) => return Err(SecretError::Cancelled(need.purpose.clone())),
        Err(error) => return Err(unreadable(need, anyhow!(error).context("the terminal"))),
    };
    let SecretSource::Env(name) = &need.source else { return Ok(value) };
    let Some(reference) = saved_references::parse_reference(value.expose()) else { return Ok(value) };
    let reference = reference.map_err(|why| unreadable(need, anyhow!("the typed reference {why}")))?;
    // The reference is saved only after reading it returned a value.
    let value = from_reference(host, &reference, need, warnings).await?;
    let saved = SavedReferences::load(host).map_err(|why| unreadable(need, why))?;
    match saved.save(host, name, reference) {
        Ok(path) => warnings.push(format!("the reference for {name} is saved in {}", path.display())),
        Err(error) => warnings.push(format!("cannot save the reference for {name}: {error}")),
    }
    Ok(value)
}

/// Returns the value of an environment variable of the host. If the variable is not set, returns the value of its saved
/// reference. `None` if there is no saved reference either.
async fn from_env_or_saved(
    host: &Host,
    name: &str,
    need: &SecretNeed,
    warnings: &mut Vec<String>,
) -> Result<Option<Secret>, SecretError> {
    if let Some(value) = from_env(host, name, need)? {
        return Ok(Some(value));
    }
    let saved = SavedReferences::load(host)
        .map_err(|why| unreadable_with_hint(need, why, "fix the file, or remove it"))?;
    match saved.get(name) {
        Some(reference) => from_reference(host, reference, need, warnings).await.map(Some),
        None => Ok(None),
    }
}

async fn from_reference(
    host: &Host,
    reference: &SecretRef,
    need: &SecretNeed,
    warnings: &mut Vec<String>,
) -> Result<Secret, SecretError> {
    match reference {
        SecretRef::File(path) => from_file(host, path, need, warnings),
        SecretRef::Keychain(name) => keychain::read(host, name, need).await,
        SecretRef::Command(argv) => from_command(host, argv, need).await,
        SecretRef::Variable(name) => {
            from_env(host, name, need)?.ok_or_else(|| unreadable(need, anyhow!("{name} is not set")))
        }
    }
}

fn from_env(host: &Host, name: &str, need: &SecretNeed) -> Result<Option<Secret>, SecretError> {
    match host.env.get(std::ffi::OsStr::new(name)) {
        None => Ok(None),
        Some(value) if value.is_empty() => Ok(None),
        Some(value) => match value.to_str() {
            Some(value) => Ok(Some(Secret::new(value.to_owned()))),
            None => Err(unreadable(need, anyhow!("the variable {name} is not UTF-8"))),
        },
    }
}

fn from_file(
    host: &Host,
    path: &Path,
    need: &SecretNeed,
    warnings: &mut Vec<String>,
) -> Result<Secret, SecretError> {
    let path = path.strip_prefix("~").map_or_else(|_| path.to_owned(), |rest| host.user_home.join(rest));
    let fault = |why: anyhow::Error| unreadable(need, why.context(path.display().to_string()));
    let (bytes, metadata) = read_bounded(&path).map_err(|error| fault(error.into()))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        warnings.push(format!("other users can read {0}; fix that with `chmod 600 {0}`", path.display()));
    }
    text_of(&bytes).map_err(fault)
}

/// Reads a regular file and its metadata. Reads at most one byte more than [`SECRET_MAX`].
fn read_bounded(path: &Path) -> io::Result<(Zeroizing<Vec<u8>>, Metadata)> {
    // The file is opened in non-blocking mode, so that a named pipe is refused without waiting for its writer.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_MAX + 1));
    file.take(SECRET_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes, metadata))
}

async fn from_command(host: &Host, argv: &[String], need: &SecretNeed) -> Result<Secret, SecretError> {
    let [program, arguments @ ..] = argv else {
        return Err(unreadable(need, anyhow!("the command is empty")));
    };
    let fault = |what: &str, why: anyhow::Error| unreadable(need, why.context(format!("`{program}` {what}")));
    // The command runs without a shell, so nothing in its arguments is expanded.
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(&host.env)
        .current_dir(&host.user_home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| fault("cannot be started", error.into()))?;
    let output = child.stdout.take().ok_or_else(|| unreadable(need, anyhow!("`{program}` has no output")))?;
    let run = async {
        let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_MAX + 1));
        output.take(SECRET_MAX as u64 + 1).read_to_end(&mut bytes).await?;
        // If the output is too long, this code does not wait for the command to end, because the command would block on
        // the full pipe.
        let status = if bytes.len() > SECRET_MAX { None } else { Some(child.wait().await?) };
        Ok::<_, io::Error>((bytes, status))
    };
    let (bytes, status) = match tokio::time::timeout(COMMAND_DEADLINE, run).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => return Err(fault("failed", error.into())),
        Err(_) => {
            let seconds = COMMAND_DEADLINE.as_secs();
            return Err(unreadable(need, anyhow!("`{program}` did not finish within {seconds} s")));
        }
    };
    match status {
        Some(status) if !status.success() => {
            let why = anyhow!("`{program}` failed: {status}");
            Err(unreadable_with_hint(need, why, "run it by hand to see the cause"))
        }
        _ => text_of(&bytes).map_err(|why| fault("printed an unusable value", why)),
    }
}

/// Decodes a secret as text and removes one trailing line break.
fn text_of(bytes: &[u8]) -> anyhow::Result<Secret> {
    ensure!(bytes.len() <= SECRET_MAX, "more than {SECRET_MAX} bytes");
    let text = std::str::from_utf8(bytes).map_err(|_| anyhow!("not UTF-8"))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    ensure!(!text.is_empty(), "empty");
    Ok(Secret::new(text.to_owned()))
}

fn unreadable(need: &SecretNeed, why: anyhow::Error) -> SecretError {
    unreadable_with_hint(need, why, FIX_HINT)
}

fn unreadable_with_hint(need: &SecretNeed, source: anyhow::Error, hint: &'static str) -> SecretError {
    SecretError::Unreadable { purpose: need.purpose.clone(), source, hint }
}

fn missing(needs: &[SecretNeed]) -> String {
    let words: Vec<String> = needs
        .iter()
        .map(|need| match &need.source {
            SecretSource::Env(name) => format!("{name} is not set (for {})", need.purpose),
            SecretSource::Prompt(text) => {
                format!("no terminal to prompt for {text:?} (for {})", need.purpose)
            }
            SecretSource::Login(text) => format!("no terminal to prompt for {text} (for {})", need.purpose),
            SecretSource::File(path) => format!("{} (for {})", path.display(), need.purpose),
            SecretSource::Keychain(_) | SecretSource::Command(_) | SecretSource::CodexLogin { .. } => {
                need.purpose.clone()
            }
        })
        .collect();
    words.join("; ")
}

/// Describes the source of a secret, for the preflight of `bottle start`.
#[must_use]
pub fn describe(source: &SecretSource) -> String {
    match source {
        SecretSource::Env(name) => format!("${name}"),
        SecretSource::File(path) => path.display().to_string(),
        SecretSource::Keychain(name) => format!("the keychain item {name}"),
        SecretSource::Command(argv) => format!("the output of `{}`", argv.first().map_or("", String::as_str)),
        SecretSource::Prompt(_) | SecretSource::Login(_) => "prompted on the terminal".to_owned(),
        SecretSource::CodexLogin { file, .. } => format!("codex's login in {}", file.display()),
    }
}

#[cfg(test)]
mod tests;
