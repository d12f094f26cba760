//! The environment of everything in a bottle: what every bottle has, then the plan's own.

use std::collections::BTreeMap;

use bottle_contract::names;
use bottle_contract::session::guest::SecretText;

use super::{LaunchError, Work};
use crate::plan::Value;

/// Variables by which programs find their roots. No single one serves all: each is what at least one
/// agent or tool reads and the others ignore.
const CA_VARIABLES: [&str; 10] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    "AWS_CA_BUNDLE",
    "CODEX_CA_CERTIFICATE",
    "NIX_SSL_CERT_FILE",
];

/// Folders of the bottle's own system, searched last.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The whole environment. The host's own variables are not inherited.
pub(super) fn of(work: &Work<'_>) -> Result<BTreeMap<String, SecretText>, LaunchError> {
    let plan = &work.order.plan;
    let inside = work.order.prepared.inside.as_ref();
    // First, so that what every bottle has stands.
    let mut env: BTreeMap<String, SecretText> = inside
        .into_iter()
        .flat_map(|inside| &inside.env)
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    let user = inside.map_or(names::AGENT_USER, |inside| inside.user.as_str());
    let mut set = |name: &str, value: &str| drop(env.insert(name.to_owned(), value.into()));
    set("HOME", &home(work));
    set("USER", user);
    set("LOGNAME", user);
    set("SHELL", "/bin/sh");
    set("LANG", "C.UTF-8");
    set("PATH", &path(work));
    if plan.agent.terminal.is_some() {
        set("TERM", work.host.var("TERM").unwrap_or("xterm-256color"));
        set("COLORTERM", "truecolor");
    }
    set("BOTTLE", plan.identity.slug.as_str());
    set("BOTTLE_PROMPT_FILE", names::PROMPT_FILE);
    if plan.agent.task.is_some() {
        set("BOTTLE_TASK_FILE", names::TASK_FILE);
    }
    for (name, value) in proxies() {
        set(name, &value);
        set(&name.to_lowercase(), &value);
    }
    set("NODE_USE_ENV_PROXY", "1");
    if inside.is_none() {
        // A system that is the host's is installed beside, in `/usr/local`, which is the bottle's own.
        set("PIP_BREAK_SYSTEM_PACKAGES", "1");
        set("NPM_CONFIG_PREFIX", "/usr/local");
    }
    for name in CA_VARIABLES {
        set(name, names::CA_BUNDLE_FILE);
    }
    // Read in addition to Node's own roots, so the bottle's CA alone is enough.
    set("NODE_EXTRA_CA_CERTS", names::CA_FILE);
    env.insert(work.canary.name.clone(), work.canary.value.clone());
    for (name, value) in &plan.env {
        let value = match value {
            Value::Literal(text) => text.as_str().into(),
            Value::Secret(id) => work.order.secrets.get(id).cloned().ok_or_else(|| {
                LaunchError::Host(format!("the variable {name} has no value: {id} is missing"))
            })?,
        };
        env.insert(name.clone(), value);
    }
    Ok(env)
}

fn proxies() -> [(&'static str, String); 4] {
    let proxy = format!("http://{}:{}", names::EGRESS_HOST, names::EGRESS_PORT);
    // The proxy's own names are reached directly, or the proxy would refuse its neighbours.
    let direct =
        ["localhost", "127.0.0.1", "::1", names::EGRESS_HOST, names::SUPERVISE_HOST, names::GIT_GATE_HOST];
    [
        ("HTTP_PROXY", proxy.clone()),
        ("HTTPS_PROXY", proxy.clone()),
        ("ALL_PROXY", proxy),
        ("NO_PROXY", direct.join(",")),
    ]
}

fn path(work: &Work<'_>) -> String {
    let own = format!("{}/.local/bin", home(work));
    let prepared = &work.order.prepared;
    let folders = prepared.path.iter().map(|folder| folder.to_string_lossy().into_owned());
    // An image knows where its programs are.
    let of_image = prepared.inside.as_ref().and_then(|inside| inside.env.get("PATH"));
    let system = of_image.map_or(SYSTEM_PATH, String::as_str).to_owned();
    // Last: whatever else is called so comes first.
    let ours = names::COMMANDS_DIR.to_owned();
    std::iter::once(own).chain(folders).chain([system, ours]).collect::<Vec<_>>().join(":")
}

/// The agent's home; its plain name leads there on every backend.
fn home(work: &Work<'_>) -> String {
    let inside = work.order.prepared.inside.as_ref();
    inside.map_or_else(|| format!("/home/{}", names::AGENT_USER), |inside| inside.home.clone())
}
