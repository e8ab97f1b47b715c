// Belief propagation by libDAI, for bench_peers.py, which compiles it: the processor time from factors to marginals.
//
//     peer_libdai MODEL.uai EVIDENCE|- SEQFIX|SEQMAX TOLERANCE ITERATIONS ROUNDS
//
// prints the least seconds of the rounds, iterations and the last change of a belief, and then each variable's marginal.

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <dai/bp.h>
#include <dai/io.h>

int main(int count, char** given) {
    if (count != 7) {
        std::cerr << "six arguments are expected, found " << count - 1 << std::endl;
        return 2;
    }
    std::vector<dai::Var> variables;
    std::vector<dai::Factor> factors;
    std::vector<dai::Permute> orders;
    dai::ReadUaiAieFactorGraphFile(given[1], 0, variables, factors, orders);
    std::map<size_t, size_t> seen;
    if (std::string(given[2]) != "-") {  // in the form of 2014, which libDAI does not read
        std::ifstream file(given[2]);
        size_t pairs = 0, variable = 0, state = 0;
        for (file >> pairs; seen.size() < pairs && file >> variable >> state;) seen[variable] = state;
    }
    dai::PropertySet options;
    options.set("updates", std::string(given[3]));
    options.set("tol", static_cast<dai::Real>(std::atof(given[4])));
    options.set("maxiter", static_cast<size_t>(std::atoi(given[5])));
    options.set("logdomain", false);

    double least = 1e300, change = 0.0;
    size_t iterations = 0;
    std::vector<dai::Factor> marginals;
    for (int round = 0; round < std::atoi(given[6]); ++round) {
        const std::clock_t begun = std::clock();
        dai::FactorGraph graph(factors.begin(), factors.end(), variables.begin(), variables.end(), factors.size(),
                               variables.size());
        for (std::map<size_t, size_t>::const_iterator at = seen.begin(); at != seen.end(); ++at)
            graph.clamp(at->first, at->second);
        dai::BP propagation(graph, options);
        propagation.init();
        change = propagation.run();
        iterations = propagation.Iterations();
        marginals.clear();
        for (size_t i = 0; i < variables.size(); ++i) marginals.push_back(propagation.beliefV(graph.findVar(variables[i])));
        least = std::min(least, static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC);
    }
    std::cout.precision(10);
    std::cout << least << " " << iterations << " " << change << "\n";
    for (size_t i = 0; i < marginals.size(); ++i) {
        for (size_t state = 0; state < marginals[i].nrStates(); ++state) std::cout << marginals[i][state] << " ";
        std::cout << "\n";
    }
    return 0;
}
