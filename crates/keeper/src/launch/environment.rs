//! Builds the environment of a bottle's processes from the common variables and the plan's variables. Processes that
//! only open the kept files of a bottle have only the common variables.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bottle_backend::{JAVA_ROOT_FILES, Prepared};
use bottle_host::Host;
use bottle_plan::{Plan, Value};
use bottle_policy::names::{self, Slug};
use bottle_protocol::session::guest::SecretText;

use super::context::LaunchContext;
use super::error::LaunchError;

/// Variables that contain the path of the trusted root certificates. For each of these variables, there is an agent or
/// tool that reads only this variable.
const CA_VARIABLES: [&str; 11] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    "AWS_CA_BUNDLE",
    "CODEX_CA_CERTIFICATE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NIX_SSL_CERT_FILE",
];

/// The variable from which all versions of Java read options.
const JAVA_OPTIONS: &str = "JAVA_TOOL_OPTIONS";

/// The system directories in the `PATH` of a bottle that uses the host's system files instead of an image. In `PATH`,
/// only [`names::COMMANDS_DIR`] comes after these directories.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables with which terminals describe themselves. From these variables, agents choose colours, keys, images and
/// links. The list contains no variables with paths, because the paths do not exist in the bottle.
pub const TERMINAL_HINTS: [&str; 16] = [
    "COLORFGBG",
    "COLORTERM",
    "ITERM_SESSION_ID",
    "KITTY_WINDOW_ID",
    "KONSOLE_VERSION",
    "LC_TERMINAL",
    "LC_TERMINAL_VERSION",
    "NO_COLOR",
    "TERMINAL_EMULATOR",
    "TERM_PROGRAM",
    "TERM_PROGRAM_VERSION",
    "VTE_VERSION",
    "WEZTERM_PANE",
    "WT_SESSION",
    "XTERM_VERSION",
    "ZED_TERM",
];

/// The maximum length in bytes of the value of a terminal's variable. A longer value is not passed to the bottle.
const HINT_MAX: usize = 64;

/// Returns the host's value of a variable that describes the terminal, if it is short and printable ASCII.
fn terminal_hint<'a>(host: &'a Host, name: &str) -> Option<&'a str> {
    let printable = |value: &&str| value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    host.var(name).filter(|value| value.len() <= HINT_MAX).filter(printable)
}

/// Returns the names of the plan's variables that contain secrets of the user.
pub(super) fn secret_names(plan: &Plan) -> BTreeSet<String> {
    let secret = plan.env.iter().filter(|(_, value)| matches!(value, Value::Secret(_)));
    secret.map(|(name, _)| name.clone()).collect()
}

/// Builds the complete environment. If the agent has a terminal, the environment inherits `TERM` and [`TERMINAL_HINTS`]
/// from the host. It inherits no other variables of the host.
pub(super) fn build(context: &LaunchContext<'_>) -> Result<BTreeMap<String, SecretText>, LaunchError> {
    let plan = &context.order.plan;
    let prepared = &context.order.prepared;
    let mut env = common(&plan.identity.slug, prepared);
    if plan.agent.terminal.is_some() {
        env.extend(terminal(context.host));
    }
    let mut set = |name: &str, value: &str| drop(env.insert(name.to_owned(), value.into()));
    set("BOTTLE_PROMPT_FILE", names::PROMPT_FILE);
    if plan.agent.task.is_some() {
        set("BOTTLE_TASK_FILE", names::TASK_FILE);
    }
    for (name, value) in proxies() {
        set(name, &value);
        set(&name.to_lowercase(), &value);
    }
    set("NODE_USE_ENV_PROXY", "1");
    if prepared.inside.is_none() {
        // Lets pip install packages outside a virtual environment. pip installs them to the bottle's writable
        // `/usr/local`, because the host's system directories are read-only in the bottle.
        set("PIP_BREAK_SYSTEM_PACKAGES", "1");
        set("NPM_CONFIG_PREFIX", "/usr/local");
    }
    for name in CA_VARIABLES {
        set(name, names::CA_BUNDLE_FILE);
    }
    // Node adds the certificates in this file to its built-in root certificates, so a file with only the bottle's CA is
    // sufficient.
    set("NODE_EXTRA_CA_CERTS", names::CA_FILE);
    set("GIT_CONFIG_SYSTEM", names::GIT_CONFIG_FILE);
    for (name, value) in plan.git_identity.variables() {
        set(&name, &value);
    }
    env.insert(context.canary.name.clone(), context.canary.value.clone());
    for (name, value) in &plan.env {
        let value = match value {
            Value::Literal(text) => text.as_str().into(),
            Value::Secret(id) => context.order.secrets.get(id).cloned().ok_or_else(|| {
                let (name, secret) = (name.clone(), id.clone());
                LaunchError::NoSecret { object: "variable", name, part: "value", secret }
            })?,
        };
        env.insert(name.clone(), value);
    }
    if needs_java_option(prepared) {
        let option = format!("-Djavax.net.ssl.trustStore={}", names::TRUSTSTORE_FILE);
        let value = match env.get(JAVA_OPTIONS) {
            // If two options contradict each other, Java applies the last one. The existing options therefore come
            // last.
            Some(others) => format!("{option} {}", others.0.expose()),
            None => option,
        };
        env.insert(JAVA_OPTIONS.to_owned(), value.as_str().into());
    }
    Ok(env)
}

/// Whether Java programs need an option to find the bottle's truststore. Java prints a line on standard error when it
/// reads [`JAVA_OPTIONS`], so the variable is set only if it is needed. The variable is not needed if the bottle uses
/// the host's system files and the host's Java packages read [`JAVA_ROOT_FILES`]. The variable is needed in an image,
/// because the Java of an image often has its own truststore.
fn needs_java_option(prepared: &Prepared) -> bool {
    prepared.inside.is_some() || !JAVA_ROOT_FILES.iter().any(|file| Path::new(file).exists())
}

/// Builds the environment of processes that open the kept files of a bottle. The environment contains no secrets, no
/// variables of the plan, and no variables for the proxy.
pub(super) fn of_kept(host: &Host, slug: &Slug, prepared: &Prepared) -> BTreeMap<String, SecretText> {
    let mut env = common(slug, prepared);
    env.extend(terminal(host));
    env
}

/// Returns the variables that every process of a bottle has.
fn common(slug: &Slug, prepared: &Prepared) -> BTreeMap<String, SecretText> {
    let inside = prepared.inside.as_ref();
    // The image's variables come first, so that the common variables override them.
    let mut env: BTreeMap<String, SecretText> = inside
        .into_iter()
        .flat_map(|inside| &inside.env)
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    let user = inside.map_or(names::AGENT_USER, |inside| inside.user.as_str());
    let mut set = |name: &str, value: &str| drop(env.insert(name.to_owned(), value.into()));
    set("HOME", &home(prepared));
    set("USER", user);
    set("LOGNAME", user);
    set("SHELL", "/bin/sh");
    set("LANG", "C.UTF-8");
    set("PATH", &path(prepared));
    set("BOTTLE", slug.as_str());
    env
}

/// Returns the variables that describe the user's terminal.
fn terminal(host: &Host) -> BTreeMap<String, SecretText> {
    let hints = TERMINAL_HINTS.into_iter().filter_map(|name| Some((name, terminal_hint(host, name)?)));
    [("TERM", terminal_hint(host, "TERM").unwrap_or("xterm-256color")), ("COLORTERM", "truecolor")]
        .into_iter()
        .chain(hints)
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}

fn proxies() -> [(&'static str, String); 4] {
    let proxy = format!("http://{}:{}", names::EGRESS_HOST, names::EGRESS_PORT);
    [
        ("HTTP_PROXY", proxy.clone()),
        ("HTTPS_PROXY", proxy.clone()),
        ("ALL_PROXY", proxy),
        // Programs connect to the sidecars directly, because the proxy would refuse requests to the sidecars.
        ("NO_PROXY", names::NO_PROXY.join(",")),
    ]
}

fn path(prepared: &Prepared) -> String {
    let own = format!("{}/.local/bin", home(prepared));
    let directories = prepared.path.iter().map(|directory| directory.to_string_lossy().into_owned());
    // If the bottle runs from an image, the image's `PATH` replaces the system directories.
    let of_image = prepared.inside.as_ref().and_then(|inside| inside.env.get("PATH"));
    let system = of_image.map_or(SYSTEM_PATH, String::as_str).to_owned();
    // [`names::COMMANDS_DIR`] is last, so that a program of the agent or the system precedes a command of the same
    // name.
    let ours = names::COMMANDS_DIR.to_owned();
    std::iter::once(own).chain(directories).chain([system, ours]).collect::<Vec<_>>().join(":")
}

/// The agent's home directory.
fn home(prepared: &Prepared) -> String {
    prepared
        .inside
        .as_ref()
        .map_or_else(|| format!("/home/{}", names::AGENT_USER), |inside| inside.home.clone())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn passes_only_short_printable_hints() {
        for (value, passed) in [
            ("iTerm.app", true),
            ("15;0", true),
            ("a b", true),
            (&"x".repeat(HINT_MAX), true),
            (&"x".repeat(HINT_MAX + 1), false),
            ("", false),
            ("a\nb", false),
            ("\u{1b}[2J", false),
            ("a\u{7f}", false),
            ("é", false),
        ] {
            let host = Host {
                env: [("TERM_PROGRAM".into(), value.into())].into(),
                cwd: PathBuf::new(),
                home: PathBuf::new(),
                user_home: PathBuf::new(),
                runtime: PathBuf::new(),
                program: PathBuf::new(),
            };
            let expected = passed.then_some(value);
            assert_eq!(terminal_hint(&host, "TERM_PROGRAM"), expected, "{value:?}");
            assert_eq!(terminal_hint(&host, "KITTY_WINDOW_ID"), None);
        }
    }
}
