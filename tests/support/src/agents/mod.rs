//! Downloads the real coding agents, unmodified, from their registries, once per machine.
//!
//! Each agent is downloaded when a test needs it, into a directory below `target/agents/` (or `BOTTLE_TEST_AGENTS`).
//! The directory has the layout that the agent's usual installer creates: a virtual environment for mini-swe-agent, an
//! npm prefix for pi, and only the program for Claude Code and codex. If the registry, Python or Node is not available,
//! the error contains the reason, and the test reports it.

mod install;
mod node;
mod packed;
mod python;

use std::path::{Path, PathBuf};

use install::{directory, once};
use packed::Packed;

/// The version of mini-swe-agent. Its dependencies are pinned in `agents/mini-swe-agent.txt`.
pub const MINI_VERSION: &str = "2.4.6";
/// The version of pi.
pub const PI_VERSION: &str = "0.73.1";

/// Claude Code, version 2.1.328: a single program for glibc.
const CLAUDE: Packed = Packed {
    name: "claude",
    package: "@anthropic-ai/claude-code-linux-x64@2.1.328",
    sha512: "KuzL+dBHgDCFTHJxwW+xuBJdVKfBsesGx2BBcTOG9sYDGoAD7b1hUV8rsTS4xjoJsB2SmeGraGjBiFuhrYuC9w==",
    program: "package/claude",
    size: "172 MB, 373 MB unpacked",
};

/// Codex, version 0.169.0: a single static program.
const CODEX: Packed = Packed {
    name: "codex",
    package: "@openai/codex@0.169.0-linux-x64",
    sha512: "o05NyAOCDygSPRo1yinzxvkRSdmsZyBD9E7mbpmjRanSfM8lypqWtQgEo4XfNkwhuCR2aFu8mlGOsQGFXVbVww==",
    program: "package/vendor/x86_64-unknown-linux-musl/bin/codex",
    size: "167 MB, 294 MB unpacked",
};

/// An installed agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// The path of the program.
    pub program: PathBuf,
    /// The directories that the agent's search path must contain. The directory of the program comes first.
    pub path: Vec<PathBuf>,
}

/// Why an agent cannot run on this machine, as one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

impl From<std::io::Error> for Missing {
    fn from(error: std::io::Error) -> Self {
        Self(format!("the agents' directory: {error}"))
    }
}

/// Installs mini-swe-agent in a virtual environment that uses the system's Python.
///
/// # Errors
/// Returns [`Missing`] if there is no Python or pip, or no registry responds.
pub fn mini() -> Result<Agent, Missing> {
    let home = directory()?.join("mini-swe-agent");
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("agents/mini-swe-agent.txt");
    let mark = std::fs::read_to_string(&requirements)?;
    once(&home, &mark, |home| {
        let python = python::system()?;
        python::environment(&python, home)?;
        python::install(&python, home, &["--no-deps", "--requirement"], &requirements)
    })?;
    let bin = home.join("bin");
    Ok(Agent { program: bin.join("mini"), path: vec![bin] })
}

/// Installs pi in an npm prefix. If the system's Node is too old for pi, also installs a newer Node in the
/// prefix.
///
/// # Errors
/// Returns [`Missing`] if there is no npm, or no registry responds.
pub fn pi() -> Result<Agent, Missing> {
    let home = directory()?.join("pi");
    once(&home, PI_VERSION, |home| {
        let node = node::at_least_20_6(home)?;
        node.install(home, &format!("@mariozechner/pi-coding-agent@{PI_VERSION}"))
    })?;
    let bin = home.join("bin");
    Ok(Agent { program: bin.join("pi"), path: vec![bin] })
}

/// Installs the program of Claude Code.
///
/// # Errors
/// Returns [`Missing`] if there is no npm, no registry responds, or the package differs from the pinned digest.
pub fn claude() -> Result<Agent, Missing> {
    packed("claude-code", &CLAUDE)
}

/// Installs the program of codex.
///
/// # Errors
/// Returns the same errors as [`claude`].
pub fn codex() -> Result<Agent, Missing> {
    packed("codex", &CODEX)
}

fn packed(directory_name: &str, packed: &Packed) -> Result<Agent, Missing> {
    let home = directory()?.join(directory_name);
    once(&home, packed.sha512, |home| packed.install(home))?;
    let bin = home.join("bin");
    Ok(Agent { program: bin.join(packed.name), path: vec![bin] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;
    use crate::skip;

    #[test]
    fn a_downloaded_agent_prints_its_version() {
        for (name, agent, flag, answer) in
            [("mini", mini(), "--help", "mini-swe-agent"), ("pi", pi(), "--version", PI_VERSION)]
        {
            let agent = match agent {
                Ok(agent) => agent,
                Err(missing) => {
                    skip::aloud(name, &missing);
                    continue;
                }
            };
            let home = tempfile::tempdir().unwrap();
            let mut program = Program::at(&agent.program);
            let path = format!("{}:/usr/bin:/bin", agent.path[0].display());
            program
                .env("PATH", path)
                .env("HOME", home.path())
                .env("MSWEA_CONFIGURED", "true")
                .arguments([flag]);
            let outcome = program.run().unwrap().expect_code(0);
            assert!((outcome.stdout + &outcome.stderr).contains(answer), "{name}");
        }
    }
}
