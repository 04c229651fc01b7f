//! The models: loaded when they are asked for, let go when nobody uses them or room is needed.

use crate::config::{Loaded, Source};
use crate::error::ApiError;
use minfer::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// All models of a server.
pub struct Models {
    list: Vec<Entry>,
    memory: Option<u64>,
    keep_alive: Option<Duration>,
    /// Loads come one after another.
    loading: tokio::sync::Mutex<()>,
    began: Instant,
}

struct Entry {
    source: Source,
    loaded: Mutex<Option<Arc<Loaded>>>,
    is_loading: AtomicBool,
    /// Milliseconds after `began`.
    used: AtomicU64,
}

/// What `/api/ps` and others tell of a model.
pub struct Status {
    /// Its name.
    pub name: String,
    /// Bytes it takes or would take.
    pub bytes: u64,
    /// If it is loaded.
    pub loaded: Option<Arc<Loaded>>,
    /// Whether it is being loaded.
    pub is_loading: bool,
}

impl Models {
    /// None of them loaded.
    pub fn new(sources: Vec<Source>, memory: Option<u64>, keep_alive: Option<Duration>) -> Self {
        let entry = |source| Entry {
            source,
            loaded: Mutex::new(None),
            is_loading: AtomicBool::new(false),
            used: AtomicU64::new(0),
        };
        Models {
            list: sources.into_iter().map(entry).collect(),
            memory,
            keep_alive,
            loading: tokio::sync::Mutex::new(()),
            began: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// The names, in the order given at the start.
    pub fn names(&self) -> Vec<&str> {
        self.list.iter().map(|e| e.source.name.as_str()).collect()
    }

    /// What can be told of each.
    pub fn statuses(&self) -> Vec<Status> {
        let status = |e: &Entry| Status {
            name: e.source.name.clone(),
            bytes: e.source.bytes,
            loaded: e.get(),
            is_loading: e.is_loading.load(Ordering::Relaxed),
        };
        self.list.iter().map(status).collect()
    }

    /// The name of the model that a request means.
    ///
    /// # Errors
    /// 404.
    pub fn name_of(&self, asked: Option<&str>) -> Result<&str, ApiError> {
        self.find(asked).map(|e| e.source.name.as_str())
    }

    fn find(&self, asked: Option<&str>) -> Result<&Entry, ApiError> {
        let found = match asked {
            None => self.list.first(),
            // Ollama's clients add a tag that means nothing here.
            Some(name) => {
                let by = |name: &str| self.list.iter().find(|e| e.source.name == name);
                by(name).or_else(|| by(name.strip_suffix(":latest")?))
            }
        };
        found.ok_or_else(|| ApiError::no_model(asked.unwrap_or_default(), &self.names()))
    }

    /// The model that a request means, loaded if it was not.
    ///
    /// # Errors
    /// 404, 503 where there is no room now, 500 where it cannot be loaded.
    pub async fn get(self: &Arc<Self>, asked: Option<&str>) -> Result<Arc<Loaded>, ApiError> {
        let entry = self.find(asked)?;
        entry.used.store(self.now(), Ordering::Relaxed);
        if let Some(loaded) = entry.get() {
            return Ok(loaded);
        }
        let _one_at_a_time = self.loading.lock().await;
        if let Some(loaded) = entry.get() {
            return Ok(loaded);
        }
        let (models, name) = (self.clone(), entry.source.name.clone());
        let load = tokio::task::spawn_blocking(move || models.load(&name));
        load.await.unwrap_or_else(|e| Err(ApiError::engine(format!("loading failed: {e}"))))
    }

    /// Loads the first model, before anything is served.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub fn load_first(&self) -> Result<(), minfer::Error> {
        if let Some(first) = self.list.first() {
            let loaded = (first.source.load)()?;
            *first.lock() = Some(Arc::new(loaded));
        }
        Ok(())
    }

    /// Loads a model, on a thread that may take its time.
    fn load(&self, name: &str) -> Result<Arc<Loaded>, ApiError> {
        let entry = self.find(Some(name))?;
        self.make_room(entry)?;
        entry.is_loading.store(true, Ordering::Relaxed);
        let loaded = (entry.source.load)();
        entry.is_loading.store(false, Ordering::Relaxed);
        let loaded = loaded.map_err(|e| match e.kind() {
            ErrorKind::Memory => ApiError::unavailable(e.to_string(), Duration::from_secs(30)),
            _ => ApiError::engine(format!("`{name}` cannot be loaded: {e}")),
        })?;
        let loaded = Arc::new(loaded);
        *entry.lock() = Some(loaded.clone());
        entry.used.store(self.now(), Ordering::Relaxed);
        Ok(loaded)
    }

    /// Lets go of models that nobody uses, the longest unused first, until there is room for one more.
    fn make_room(&self, wanted: &Entry) -> Result<(), ApiError> {
        let Some(memory) = self.memory else { return Ok(()) };
        loop {
            let loaded: Vec<&Entry> = self.list.iter().filter(|e| e.get().is_some()).collect();
            let taken: u64 = loaded.iter().map(|e| e.source.bytes).sum();
            if taken.saturating_add(wanted.source.bytes) <= memory {
                return Ok(());
            }
            let idle = loaded.into_iter().filter(|e| e.is_idle());
            let Some(oldest) = idle.min_by_key(|e| e.used.load(Ordering::Relaxed)) else {
                let mib = |bytes: u64| bytes >> 20;
                let (bytes, name) = (wanted.source.bytes, &wanted.source.name);
                let message = format!(
                    "`{name}` takes {} MiB; of the {} MiB for models {} are in use",
                    mib(bytes),
                    mib(memory),
                    mib(taken)
                );
                return Err(ApiError::unavailable(message, Duration::from_secs(5)));
            };
            oldest.lock().take();
        }
    }

    /// Lets go of models that nobody used for the time they stay.
    pub fn drop_unused(&self) {
        let Some(keep) = self.keep_alive else { return };
        let now = self.now();
        for entry in &self.list {
            if entry.get().is_none() {
                continue;
            }
            if !entry.is_idle() {
                entry.used.store(now, Ordering::Relaxed);
            } else if now.saturating_sub(entry.used.load(Ordering::Relaxed)) >= keep.as_millis() as u64 {
                entry.lock().take();
            }
        }
    }

    /// Takes no new requests to any engine.
    pub fn drain(&self) {
        self.list.iter().filter_map(Entry::get).for_each(|loaded| loaded.engine.drain());
    }
}

impl Entry {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Loaded>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Option<Arc<Loaded>> {
        self.lock().clone()
    }

    /// Whether nothing runs and no request holds it.
    fn is_idle(&self) -> bool {
        self.lock().as_ref().is_some_and(|loaded| Arc::strong_count(loaded) == 1 && loaded.engine.is_idle())
    }
}
