//! Panels: what attention multiplies with, 16 positions of K or 16 columns of V at a time.

use super::format::{KvElement, load_line};
use crate::simd::{Kernel, Simd};

/// Values that lie together when they are read: positions of K, columns of V.
pub const PANEL: usize = 16;
/// A dimension of a panel of K, or a position of a panel of V.
pub type Line = [f32; PANEL];

/// Panels that a kernel multiplies with.
pub trait Panels: Copy {
    /// One of them.
    type Panel: Panel;
    /// A panel by its index.
    fn panel(&self, index: usize) -> Self::Panel;
}

/// A panel: dimensions of K for 16 positions, or positions of V for 16 columns.
pub trait Panel: Copy {
    /// Its first steps; panics if there are fewer.
    fn up_to(self, end: usize) -> Self;
    /// The 16 values of a step.
    fn line<S: Simd>(&self, s: S, step: usize) -> [S::F; 2];
}

/// Panels that were read into memory, `[panel][step][16]`.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    /// All of them.
    pub lines: &'a [Line],
    /// Steps of a panel.
    pub len: usize,
}

impl<'a> Panels for Lines<'a> {
    type Panel = &'a [Line];

    #[inline(always)]
    fn panel(&self, index: usize) -> &'a [Line] {
        &self.lines[index * self.len..][..self.len]
    }
}

impl Panel for &[Line] {
    #[inline(always)]
    fn up_to(self, end: usize) -> Self {
        &self[..end]
    }

    #[inline(always)]
    fn line<S: Simd>(&self, s: S, step: usize) -> [S::F; 2] {
        [s.load(&self[step]), s.load(&self[step][8..])]
    }
}

/// Floats as they are stored: a step's values for all panels lie together.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a, E> {
    /// From the panel's first value on.
    pub values: &'a [E],
    /// Values from step to step.
    pub stride: usize,
}

impl<'a, E: KvElement> Panels for Stored<'a, E> {
    type Panel = Self;

    #[inline(always)]
    fn panel(&self, index: usize) -> Self {
        Stored { values: &self.values[index * PANEL..], ..*self }
    }
}

impl<E: KvElement> Panel for Stored<'_, E> {
    #[inline(always)]
    fn up_to(self, _end: usize) -> Self {
        self
    }

    #[inline(always)]
    fn line<S: Simd>(&self, s: S, step: usize) -> [S::F; 2] {
        load_line(s, &self.values[step * self.stride..])
    }
}

/// A kernel that multiplies with panels, wherever they are. `run` must be `#[inline(always)]`.
pub trait PanelKernel {
    /// Calls it.
    fn run<S: Simd>(self, s: S, panels: impl Panels);
}

/// A kernel with its panels.
pub struct On<K, P> {
    /// The kernel.
    pub kernel: K,
    /// The panels.
    pub panels: P,
}

impl<K: PanelKernel, P: Panels> Kernel for On<K, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.kernel.run(s, self.panels);
    }
}
