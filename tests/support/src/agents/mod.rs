//! Downloads the real, unmodified coding agents from their registries, once per machine.
//!
//! They are downloaded at test time, each into a folder below `target/agents/` (or `BOTTLE_TEST_AGENTS`), with the
//! layout of its usual installer: a virtual environment for mini-swe-agent, an npm prefix for pi, the program alone
//! for Claude Code and codex. Without a registry, Python or Node the error is the reason, for the test to report.

mod install;
mod node;
mod packed;
mod python;

use std::path::{Path, PathBuf};

use install::{folder, once};
use packed::Packed;

/// mini-swe-agent's version; its dependencies are pinned in `agents/mini-swe-agent.txt`.
pub const MINI_VERSION: &str = "2.4.6";
/// pi's version.
pub const PI_VERSION: &str = "0.73.1";

/// Claude Code, version 2.1.328: one program for glibc.
const CLAUDE: Packed = Packed {
    name: "claude",
    package: "@anthropic-ai/claude-code-linux-x64@2.1.328",
    sha512: "KuzL+dBHgDCFTHJxwW+xuBJdVKfBsesGx2BBcTOG9sYDGoAD7b1hUV8rsTS4xjoJsB2SmeGraGjBiFuhrYuC9w==",
    program: "package/claude",
    size: "172 MB, 373 MB unpacked",
};

/// codex, version 0.169.0: one static program.
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
    /// The program's path.
    pub program: PathBuf,
    /// Folders that its search path needs, the program's own first.
    pub path: Vec<PathBuf>,
}

/// Why an agent cannot run on this machine: one sentence.
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
        Self(format!("the agents' folder: {error}"))
    }
}

/// mini-swe-agent in a virtual environment over the system's own Python.
///
/// # Errors
/// [`Missing`] when there is no Python, no pip, or no registry answers.
pub fn mini() -> Result<Agent, Missing> {
    let home = folder()?.join("mini-swe-agent");
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

/// pi in an npm prefix, with a Node of its own beside it where the system's is too old.
///
/// # Errors
/// [`Missing`] when there is no npm, or no registry answers.
pub fn pi() -> Result<Agent, Missing> {
    let home = folder()?.join("pi");
    once(&home, PI_VERSION, |home| {
        let node = node::at_least_20_6(home)?;
        node.install(home, &format!("@mariozechner/pi-coding-agent@{PI_VERSION}"))
    })?;
    let bin = home.join("bin");
    Ok(Agent { program: bin.join("pi"), path: vec![bin] })
}

/// Claude Code, its program alone.
///
/// # Errors
/// [`Missing`] when there is no npm, no registry answers, or what it has is not what was pinned.
pub fn claude() -> Result<Agent, Missing> {
    packed("claude-code", &CLAUDE)
}

/// codex, its program alone.
///
/// # Errors
/// As [`claude`].
pub fn codex() -> Result<Agent, Missing> {
    packed("codex", &CODEX)
}

fn packed(folder_name: &str, packed: &Packed) -> Result<Agent, Missing> {
    let home = folder()?.join(folder_name);
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
