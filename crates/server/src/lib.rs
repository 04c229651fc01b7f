//! minfer's HTTP server: OpenAI's, Anthropic's and Ollama's interfaces over [`minfer::engine`].
//!
//! Handlers run on an asynchronous runtime and only wait for channels; each model computes on the thread of its engine. So
//! `/health` never waits for a model, and a client that goes away is noticed at once: what it asked for is dropped, and with
//! it its place in the queue or its pages.
#![forbid(unsafe_code)]

mod anthropic;
mod app;
mod config;
mod error;
mod fields;
mod format;
mod guard;
mod metrics;
mod models;
mod ollama;
mod openai;
mod openapi;
mod page;
mod prompt;
mod record;
mod sampling;
mod status;
mod stream;
mod talk;
mod tokens;

pub use config::{Config, Loaded, MAX_BODY, Source, Template};

use app::{App, router};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How often the end is looked for, and models that nobody uses.
const TICK: Duration = Duration::from_millis(50);

/// Why the server could not be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be had.
    #[error("{0}: {1}")]
    Address(SocketAddr, io::Error),
    /// The first model cannot be loaded.
    #[error(transparent)]
    Model(#[from] minfer::Error),
    /// Something else of the system's.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Loads the first model and serves until a signal ends it. `listening` is told the address once requests are taken.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(mut config: Config, listening: impl FnOnce(SocketAddr)) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let wanted = config.address;
        let taken = |e| ServeError::Address(wanted, e);
        let listener = TcpListener::bind(wanted).await.map_err(taken)?;
        config.address = listener.local_addr().map_err(taken)?;
        let (address, grace) = (config.address, config.grace);
        let app = App::new(config);
        app.models.load_first()?;
        listening(address);
        Ok(run(app, listener, grace).await?)
    })
}

async fn run(app: Arc<App>, listener: TcpListener, grace: Duration) -> io::Result<()> {
    let over = Arc::new(Notify::new());
    tokio::spawn(end(app.clone(), grace, over.clone()));
    tokio::spawn(housekeeping(app.clone()));
    let serving = axum::serve(listener, router(app));
    // Connections that are idle are not waited for: all answers have been given by then.
    tokio::select! {
        served = serving => served,
        () = over.notified() => Ok(()),
    }
}

/// Waits for the first signal, then until all that runs has ended, the grace is over, or a second one comes.
async fn end(app: Arc<App>, grace: Duration, over: Arc<Notify>) {
    signal().await;
    app.drain();
    let latest = Instant::now() + grace;
    let drained = async {
        while app.busy.now() > 0 && Instant::now() < latest {
            sleep(TICK).await;
        }
        // The last bytes of the last answer are on their way.
        sleep(TICK).await;
    };
    tokio::select! {
        () = drained => {}
        () = signal() => {}
    }
    over.notify_one();
}

async fn housekeeping(app: Arc<App>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        let models = app.models.clone();
        // Letting go of a model waits for its engine's thread.
        if tokio::task::spawn_blocking(move || models.drop_unused()).await.is_err() {
            return;
        }
    }
}

/// SIGTERM, or an interrupt from the terminal.
async fn signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    // Without signals the server ends with its process.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
