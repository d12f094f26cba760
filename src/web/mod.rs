//! The web dashboard: the data and actions of the terminal dashboard, as pages for a browser on this machine.
//!
//! ```text
//! browser ─► loopback ─► access ─► site ─► pages (HTML)
//!                                  ├────► gather, action, bottle_lib::proposals::review
//!                                  └────► events (live parts)
//! ```
//! - `console::loopback`: accepts connections · `access`: who may use the dashboard · `site`: finds the page and
//!   carries out actions
//! - `pages`: HTML · `form`: fields of forms · `assets`: the style sheet and the script
//!
//! No page loads anything from another server.

mod access;
mod assets;
mod form;
mod pages;
mod site;

use bottle_host::Host;
use bottle_lib::report::WebDashboard;

use self::access::Access;
use self::site::Site;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::loopback;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::signals::{Signals, interrupted};

/// SIGINT, with which the user ends the dashboard.
const INTERRUPT: u8 = 2;

/// Serves the dashboard on the loopback interface until a signal arrives. Port 0 selects any free port.
pub(crate) fn serve(host: &Host, output: &Output, port: u16) -> Result<u8, CliError> {
    block_on(async {
        let mut signals = Signals::catch()?;
        let listener = loopback::listen(port).await?;
        let access = Access::new(loopback::authority(&listener)?);
        let url = access.link().unwrap_or_default();
        output.json_or(&WebDashboard { url: url.clone() }, || output.print(&url))?;
        output.note("open this link in a browser: it works once, and Ctrl-C ends the dashboard");
        let site = Site::new(host.clone(), access);
        tokio::select! {
            never = loopback::accept(listener, site) => match never {},
            number = signals.end() => match number {
                INTERRUPT => Ok(exit::DONE),
                number => Err(interrupted(number)),
            },
        }
    })
}
