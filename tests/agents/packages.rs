//! Fetches packages through the proxy and builds projects with them, with the real tools of Python, Node and
//! Rust.
//!
//! The registries are those in this machine's configuration. If a registry does not respond, the test is
//! reported as skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::{developer_root, skip, small_root};

/// The time limit for a command, which may fetch packages, copy a toolchain or build a project.
const PATIENCE: Duration = Duration::from_secs(300);

/// A project that depends on third-party packages.
struct Project {
    name: &'static str,
    /// The path of the tool that the project needs. If it does not exist on this machine, the project is
    /// skipped.
    needs: &'static str,
    /// A shell script that creates, builds and runs the project. `$TOOLCHAIN` is the directory of the Rust
    /// toolchain.
    script: &'static str,
    /// The line that the project must print.
    prints: &'static str,
}

const PROJECTS: [Project; 3] = [
    Project {
        name: "pip",
        needs: "/usr/bin/pip3",
        script: "printf '[build-system]\\nrequires = [\"setuptools\"]\\nbuild-backend = \"setuptools.build_meta\"\\n\
            [project]\\nname = \"small-project\"\\nversion = \"1\"\\ndependencies = [\"six==1.17.0\", \"idna==3.10\"]\\n' >pyproject.toml; \
            printf 'import six, idna\\nprint(\"python\", six.__version__, idna.encode(\"caf\\\\u00e9.example\").decode())\\n' >small_project.py; \
            PIP_BREAK_SYSTEM_PACKAGES=1 /usr/bin/python3 -m pip install -q --no-cache-dir . && cd / && /usr/bin/python3 -m small_project",
        prints: "python 1.17.0 xn--caf-dma.example",
    },
    Project {
        name: "npm",
        needs: "/usr/bin/npm",
        script: "printf '{\"name\":\"small-project\",\"version\":\"1.0.0\",\"dependencies\":{\"is-odd\":\"3.0.1\"}}' >package.json; \
            npm install --no-audit --no-fund --no-update-notifier --loglevel=error && \
            node -e 'console.log(\"node\", require(\"is-odd\")(3), require(\"is-odd/package.json\").version)'",
        prints: "node true 3.0.1",
    },
    Project {
        name: "cargo",
        needs: "/usr/bin/gcc",
        script: "mkdir src; printf '[package]\\nname=\"small\"\\nversion=\"0.1.0\"\\nedition=\"2021\"\\n[dependencies]\\nitoa=\"=1.0.15\"\\n' >Cargo.toml; \
            printf 'fn main() { println!(\"cargo {}\", itoa::Buffer::new().format(42)); }' >src/main.rs; \
            PATH=$TOOLCHAIN/bin:$PATH cargo build -q && ./target/debug/small",
        prints: "cargo 42",
    },
];

/// The registries from which this machine's programs fetch packages.
struct Registries {
    pip: String,
    npm: String,
    /// The host names of all package registries that these tests use.
    hosts: Vec<String>,
}

impl Registries {
    /// Reads the registries from the configuration of pip and npm, and from the registry indexes that cargo
    /// has cached.
    fn of_this_machine() -> Result<Self> {
        let pip = output_of(
            "/usr/bin/python3",
            &[
                "-c",
                "import os\n\
                 from pip._internal.configuration import Configuration\n\
                 from pip._internal.models.index import PyPI\n\
                 c = Configuration(isolated=False); c.load()\n\
                 own = [v for k, v in c.items() if k.endswith('.index-url')]\n\
                 print(own[-1] if own else PyPI.simple_url, 'https://' + PyPI.file_storage_domain)",
            ],
        )?;
        let npm = output_of("npm", &["config", "get", "registry"])?;
        let mut hosts: Vec<String> = pip.split(' ').chain([npm.as_str()]).filter_map(host_of).collect();
        hosts.extend(cargo()?);
        hosts.sort();
        hosts.dedup();
        let pip = pip.split(' ').next().unwrap_or_default().to_owned();
        Ok(Self { pip, npm, hosts })
    }

    /// Returns why the registries of pip and npm cannot be used; `None` if both respond.
    fn silent(&self) -> Option<String> {
        [&self.pip, &self.npm].into_iter().find_map(|url| {
            let response = Command::new("curl").args(["-sfL", "-m", "20", "-o", "/dev/null", url]).status();
            (!response.is_ok_and(|status| status.success())).then(|| format!("{url} does not answer"))
        })
    }
}

/// Returns the hosts of the registries that cargo has used on this machine, and the hosts of their packages.
fn cargo() -> Result<Vec<String>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let mut hosts = Vec::new();
    for index in fs::read_dir(home.context("a home")?.join("registry/index")).into_iter().flatten() {
        let index = index?;
        let name = index.file_name().into_string().unwrap_or_default();
        hosts.extend(name.rsplit_once('-').map(|(host, _)| host.to_owned()));
        let config = fs::read_to_string(index.path().join("config.json")).unwrap_or_default();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap_or_default();
        hosts.extend(config["dl"].as_str().and_then(host_of));
    }
    Ok(hosts)
}

fn host_of(url: &str) -> Option<String> {
    let rest = url.split_once("://")?.1;
    Some(rest.split(['/', ':']).next()?.to_owned())
}

fn output_of(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The properties of a bottle in which the projects are built.
struct Kind<'a> {
    name: &'a str,
    image: &'a str,
    toolchain: &'a str,
    routes: bool,
}

fn bottle(home: &mut TestHome, registries: &Registries, kind: &Kind<'_>) -> Result<()> {
    let Kind { name, image, toolchain, .. } = kind;
    let mut egress = String::new();
    if kind.routes {
        egress.push_str("egress:\n");
        // The bottle reaches the registries as this machine does: with this machine's certificate authority and proxy,
        // and at private addresses.
        if let Some(bundle) = std::env::var("SSL_CERT_FILE").ok().filter(|path| Path::new(path).is_file()) {
            egress.push_str(&format!("  ca_bundle: {bundle}\n"));
        }
        if let Some(proxy) =
            ["HTTPS_PROXY", "https_proxy"].into_iter().find_map(|name| std::env::var(name).ok())
        {
            home.env("REGISTRY_PROXY", proxy);
            egress.push_str("  upstream_proxy: $REGISTRY_PROXY\n");
        }
        egress.push_str("  routes:\n");
        for host in &registries.hosts {
            egress.push_str(&format!("    - {{host: {host:?}, private: true}}\n"));
        }
    }
    home.agent(name, &format!("---\nbottle: {name}\n---\n"))?;
    home.bottle(
        name,
        &format!(
            "---\nbackend: linux\n\
             env: {{TOOLCHAIN: {toolchain:?}, PIP_INDEX_URL: {:?}, npm_config_registry: {:?}}}\n\
             agent_provider: {{template: command, command: [sleep, '600']{image}}}\n{egress}---\n",
            registries.pip, registries.npm,
        ),
    )?;
    Ok(())
}

fn run(home: &TestHome, arguments: &[&str]) -> Result<Outcome> {
    home.program(arguments.iter().copied())?.deadline(PATIENCE).run()
}

/// Builds every project in the bottle `name`. With `fails`, builds only the project for pip, which must fail
/// because the bottle has no routes.
fn builds(home: &TestHome, name: &str, fails: bool) -> Result<()> {
    let started = run(home, &["start", name, "--label", name, "--detach", "--yes", "-q"])?;
    ensure!(started.code == 0, "{}", started.transcript());
    for project in PROJECTS.iter().filter(|project| !fails || project.name == "pip") {
        if !Path::new(project.needs).exists() {
            skip::aloud(project.name, &format!("there is no {} here", project.needs));
            continue;
        }
        let script =
            format!("mkdir /workspace/{0} && cd /workspace/{0} && {1}", project.name, project.script);
        let built = run(home, &["exec", name, "--", "/bin/sh", "-c", &script])?;
        if fails {
            ensure!(built.code != 0 && !built.stdout.contains(project.prints), "{}", built.transcript());
        } else {
            let printed = built.stdout.lines().any(|line| line == project.prints);
            ensure!(built.code == 0 && printed, "{name}: {}: {}", project.name, built.transcript());
        }
    }
    let _ = run(home, &["stop", name, "--time", "0", "-q"])?.expect_code(0);
    Ok(())
}

/// Returns a home, this machine's registries, and the directory of this machine's Rust toolchain. If one of them is not
/// available, reports that the test is skipped and returns `None`.
fn scene(test: &str) -> Result<Option<(TestHome, Registries, String)>> {
    let home = TestHome::new()?;
    if !home.runs(test, "linux")? {
        return Ok(None);
    }
    let registries = match Registries::of_this_machine() {
        Ok(registries) => registries,
        Err(error) => {
            skip::aloud(test, &format!("{error:#}"));
            return Ok(None);
        }
    };
    if let Some(why) = registries.silent() {
        skip::aloud(test, &why);
        return Ok(None);
    }
    match output_of("rustc", &["--print", "sysroot"]) {
        Ok(toolchain) => Ok(Some((home, registries, toolchain))),
        Err(error) => {
            skip::aloud(test, &format!("{error:#}"));
            Ok(None)
        }
    }
}

#[test]
#[ignore = "fetches a few small packages from this machine's registries"]
fn real_packages_build_on_the_hosts_system() -> Result<()> {
    let Some((mut home, registries, toolchain)) = scene("packages on this machine's system")? else {
        return Ok(());
    };
    home.write("home/.bottle/settings.yml", &format!("home_allow: [{toolchain:?}]\n"))?;
    for (name, routes) in [("open", true), ("shut", false)] {
        let kind = Kind { name, image: "", toolchain: &toolchain, routes };
        bottle(&mut home, &registries, &kind)?;
        builds(&home, name, !routes)?;
    }
    Ok(())
}

#[test]
#[ignore = "fetches a few small packages from this machine's registries, and copies 700 MB of this machine's programs"]
fn real_packages_build_in_an_image() -> Result<()> {
    let test = "packages in an image";
    let Some((mut home, registries, toolchain)) = scene(test)? else { return Ok(()) };
    let root = home.bottle_home().join("developer");
    small_root::make(&root)?;
    if let Err(error) = developer_root::add(&root, Path::new(&toolchain)) {
        skip::aloud(test, &error);
        return Ok(());
    }
    let image = ", image: ./developer";
    for (name, routes) in [("open", true), ("shut", false)] {
        let kind = Kind { name, image, toolchain: developer_root::TOOLCHAIN, routes };
        bottle(&mut home, &registries, &kind)?;
        builds(&home, name, !routes)?;
    }
    Ok(())
}
