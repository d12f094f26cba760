//! Tests what `docs/coming-from.md` says to users of hermes-agent about places that are no backends.

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{home, run};

const PAGE: &str = include_str!("../../docs/coming-from.md");

#[test]
fn the_places_of_hermes_agent_without_a_backend_are_refused() -> Result<()> {
    let home = home()?;
    for place in ["singularity", "apptainer", "ssh", "modal", "daytona"] {
        ensure!(PAGE.contains(place), "the page does not name {place}");
        let refused = run(&home, &["start", "hi", "--backend", place, "--yes"])?.expect_code(2);
        let stderr = &refused.stderr;
        ensure!(stderr.contains(&format!("no backend is named \"{place}\"")), "{stderr}");
        ensure!(stderr.contains("hint: the backends are linux, docker"), "{stderr}");
    }
    Ok(())
}

/// The page says that an image file of apptainer is refused.
#[test]
fn an_image_file_of_apptainer_is_refused() -> Result<()> {
    let mut home = TestHome::new()?;
    if !home.runs("an image file of apptainer", "linux")? {
        return Ok(());
    }
    let header = "#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0".to_owned() + &"\0".repeat(4096);
    home.write("home/.bottle/images/x.sif", &header)?;
    let provider = "{template: command, command: [sleep, '600'], image: ./images/x.sif}";
    home.bottle("sif", &format!("---\nbackend: linux\nagent_provider: {provider}\n---\n"))?;
    home.agent("sif", "---\nbottle: sif\n---\n")?;
    let refused = run(&home, &["start", "sif", "--yes"])?.expect_code(4).stderr;
    ensure!(refused.contains("./images/x.sif is neither a directory nor a tar archive"), "{refused}");
    Ok(())
}
