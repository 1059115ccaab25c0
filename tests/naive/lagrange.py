"""Lagrange's polynomials by their roots, integrated by their antiderivative; the others by scipy's rule."""

import numpy as np
from scipy.integrate import quad


def lagrange_integrals(nodes, start, end):
    c = []
    for node in nodes:
        polynomial = np.poly1d(np.poly([other for other in nodes if other != node]))
        antiderivative = (polynomial / polynomial(node)).integ()
        c.append(antiderivative(end) - antiderivative(start))
    return np.array(c)


def log_lagrange_integrals(nodes, start, end):
    c = []
    for node in nodes:
        polynomial = np.poly1d(np.poly([np.log(other) for other in nodes if other != node]))
        scale = polynomial(np.log(node))
        c.append(quad(lambda s, f=polynomial, g=scale: f(np.log(s)) / g, start, end, epsabs=0, epsrel=1e-12)[0])
    return np.array(c)


def exponential_lagrange_integrals(nodes, start, end, rate):
    c = []
    for node in nodes:
        polynomial = np.poly1d(np.poly([other for other in nodes if other != node]))
        faded = lambda t, f=polynomial: rate * np.exp(rate * (t - end)) * f(t)
        c.append(quad(faded, start, end, epsabs=0, epsrel=1e-12)[0] / polynomial(node))
    return np.array(c)
